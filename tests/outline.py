"""The outline of an HTML page, for the tests of cards and reports."""

import re
from html.parser import HTMLParser

VOID = {"meta", "br", "wbr", "input", "img", "link"}


class Outline(HTMLParser):
    """Lists elements, attributes, ids and text, and checks that every element is closed."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.attributes, self.ids, self.words = [], [], [], [], []
        # plotly.js is long and not of interest here.
        self.feed(re.sub(r"<script>.*?</script>", "<script></script>", page, flags=re.DOTALL))
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"script", "style"} & set(self.open):
            self.words.append(data)

    @property
    def text(self):
        return " ".join("".join(self.words).split())
