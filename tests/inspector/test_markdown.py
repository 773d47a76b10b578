"""Markdown of messages: no script, no style and no address but sites and mail gets into a page."""

from __future__ import annotations

import re

import pytest
from markupsafe import Markup
from support.pages import HOSTILE

from langgraph_pgstate.inspector.messages import is_safe_image, is_safe_link, to_html

PIXEL = "data:image/png;base64,iVBORw0KGgo="


def test_formatting_is_shown() -> None:
    found = to_html("**b** `c`\n\n- one\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n")
    for part in ("<strong>b</strong>", "<code>c</code>", "<li>one</li>", '<td class="number">2</td>'):
        assert part in found
    assert "style" not in found


@pytest.mark.parametrize(
    "text",
    [
        HOSTILE,
        "<style>*{}</style>",
        "[x](javascript:alert(1))",
        "[x](JaVaScRiPt:alert(1))",
        "[x](&#106;avascript:alert(1))",
        "[x](vbscript:x)",
        "[x](data:text/html;base64,PHNjcmlwdD4=)",
        "[x](/ui/threads/t/delete)",
        "[x]( \x01javascript:alert(1))",
        "![x](https://evil.example/x.png)",
        "![x](javascript:alert(1))",
        "![x](data:image/svg+xml;base64,PHN2Zz4=)",
        '<https://evil.example/" onclick=alert(1)>',
        '[x](https://evil.example "title\\" onclick=alert(1)")',
        '!["><script>alert(1)</script>](https://evil.example)',
        f"[{HOSTILE}](https://evil.example)",
        f"```{HOSTILE}\n{HOSTILE}\n```",
        "[x]: javascript:alert(1)\n[x]",
    ],
)
def test_hostile_text_stays_inert(text: str) -> None:
    found = str(to_html(text))
    # What is left when allowed elements are taken away has no element.
    link = (
        r'<a href="(https?://|mailto:)[^"<>]*"( title="[^"<>]*")? rel="noopener noreferrer nofollow" target="_blank">'
    )
    rest = re.sub(rf'{link}|</?(p|a|pre|span|em|strong|h\d)>|<code( class="[^"<>]*")?>|</code>', "", found)
    assert "<" not in rest, found


def test_links_and_images() -> None:
    assert 'href="https://example.com/a"' in to_html("[x](https://example.com/a)")
    assert f'<img src="{PIXEL}" alt="cat">' in to_html(f"![cat]({PIXEL})")
    assert "cat" in to_html("![cat](https://example.com/cat.png)")
    assert is_safe_link("mailto:a@example.com")
    assert not is_safe_link("//example.com")
    assert is_safe_image(PIXEL)
    assert not is_safe_image("https://example.com/x.png")


def test_a_table_of_many_empty_cells_stays_small() -> None:
    text = "|a" * 300 + "|\n" + "|-" * 300 + "|\n" + "|\n|x\n" * 500
    assert len(to_html(text)) < 6 * len(text)
    assert "<table>" not in to_html(text)
    assert len(to_html("- \n" * 1000)) < 6 * 3000


@pytest.mark.parametrize("part", ["[", "![", "*_", "[a](", "![a](data:image/png;base64,AA", "2. [\n", "> [\n", "|[\n"])
def test_text_that_would_take_seconds_is_shown_unchanged(part: str) -> None:
    text = part * (36_000 // len(part))
    assert to_html(text) == Markup("<pre>{}</pre>").format(text)


def test_a_long_text_of_many_links_is_shown_as_markdown() -> None:
    found = to_html("- see [this](https://example.com) and *that*\n" * 800)
    assert found.count("<a ") == found.count("<em>") == 800
