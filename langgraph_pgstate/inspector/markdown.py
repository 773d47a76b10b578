"""Markdown of messages as HTML that holds nothing but text, formatting and safe links."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

_LINK: Final = re.compile(r"(https?://|mailto:)", re.IGNORECASE)
_MOST_GROWTH: Final = 5
_MOST_CELLS: Final = 3000
_IMAGE: Final = re.compile(r"data:image/(png|gif|jpeg|webp);base64,", re.IGNORECASE)


def is_safe_link(url: str) -> bool:
    """Return whether a link leads to a site or an address of mail."""
    return _LINK.match(url) is not None


def is_safe_image(url: str) -> bool:
    """Return whether an image is in the text itself: nothing is loaded from elsewhere."""
    return _IMAGE.match(url) is not None


def to_html(text: str) -> Markup:
    """Return Markdown as HTML. HTML in it is shown as text; links to other than sites and mail are not links.

    Text whose HTML would be many times as long, like a table of empty cells, is shown as it is.
    """
    lines = text.splitlines()
    # Rows are filled up to the width of the widest, which takes seconds for a text of 4 KB.
    is_wide = max((line.count("|") for line in lines), default=0) * len(lines) > _MOST_CELLS
    # The renderer escapes all text, and no rule passes HTML on.
    found = _parser("commonmark" if is_wide else "table").render(text)
    if len(found) > _MOST_GROWTH * len(text) + 200:
        return Markup("<pre>{}</pre>").format(text)
    return Markup(found)


@cache
def _parser(rules: str) -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "linkify": False, "xhtmlOut": False}).enable("strikethrough")
    if rules == "table":
        parser.enable("table")
    parser.validateLink = _is_allowed  # type: ignore[method-assign]
    parser.add_render_rule("link_open", _open_link)
    parser.add_render_rule("image", _draw_image)
    for cell in ("th_open", "td_open"):
        parser.add_render_rule(cell, _open_cell)
    return parser


def _is_allowed(url: str) -> bool:
    return is_safe_link(url) or is_safe_image(url)


def _open_link(self: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    token = tokens[index]
    if is_safe_link(str(token.attrGet("href") or "")):
        token.attrSet("rel", "noopener noreferrer nofollow")
        token.attrSet("target", "_blank")
    else:
        token.attrs.pop("href", None)
    return str(self.renderToken(tokens, index, options, env))


def _open_cell(self: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    token = tokens[index]
    # Pages allow no styles in attributes.
    if "right" in str(token.attrs.pop("style", "")):
        token.attrSet("class", "number")
    return str(self.renderToken(tokens, index, options, env))


def _draw_image(self: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    token = tokens[index]
    if is_safe_image(str(token.attrGet("src") or "")):
        return str(self.image(tokens, index, options, env))
    # A text instead of an image that would tell a site who reads the page.
    token.tag, token.nesting = "span", 1
    token.attrs.clear()
    opening = str(self.renderToken(tokens, index, options, env))
    return f"{opening}{Markup.escape(token.content or 'image')}</span>"
