"""HTML as a parser reads it."""

from html.parser import HTMLParser

EMPTY = ("meta", "link", "input", "br", "img", "circle")


class Read(HTMLParser):
    """Elements in their order as (tag, attributes, own text), cells' and rows' ends left to the parser as HTML allows."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str], list[str]]] = []
        self.open: list[int] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attributes}, []))
        if tag not in EMPTY:
            self.open.append(len(self.elements) - 1)

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.elements[self.open.pop()][0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        for place in self.open[-1:]:
            self.elements[place][2].append(data)
            if self.elements[place][0] == "mark":  # a line of the code around it
                self.elements[self.open[-2]][2].append(data)

    def named(self, *tags: str) -> list[tuple[dict[str, str], str]]:
        return [(attributes, "".join(text)) for tag, attributes, text in self.elements if tag in tags]

    @property
    def text(self) -> str:
        return "".join("".join(text) for tag, _, text in self.elements if tag not in ("script", "style"))
