"""What the recipes share: from the cells of a table to runs, from runs to results, from results to a page."""
