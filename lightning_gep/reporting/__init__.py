"""`gep-report`: what runs left on disk, as one page that needs no network, or as Markdown."""
