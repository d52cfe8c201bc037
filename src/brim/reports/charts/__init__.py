"""Charts of the HTML page: each function turns replays into a piece of SVG or HTML, without network or scripts."""
