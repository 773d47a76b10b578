"""Hooks of mkdocs: generated pages, GitHub's anchors, and links that lead out of `docs/`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
# Sources to which the documents lead in a repository, and what the site makes of them.
GENERATED = {
    "langgraph_pgstate/schema/schema.sql": "reference/sql.md",
    "langgraph_pgstate/errors.py": "reference/errors.md",
    "langgraph_pgstate/server/app.py": "reference/server.md",
    "langgraph_pgstate/server/routes.py": "reference/server.md",
    "langgraph_pgstate/worker/config_keys.py": "reference/server.md",
    "langgraph_pgstate/otlp/spans.py": "reference/attributes.md",
    "examples/monitoring/alerts.yml": "reference/metrics.md",
    "langgraph_pgstate/admin/gauges.py": "reference/metrics.md",
    "langgraph_pgstate/metrics.py": "reference/metrics.md",
    "langgraph_pgstate/server/langgraph_platform.py": "reference/settings.md",
}
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(((?:\.\./)+[^)#]+)(#[^)]*)?\)")


def on_config(config: Any) -> Any:
    """Make anchors as GitHub does, so that a link leads to the same heading in the repository and on the site."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify
    return config


def slugify(heading: str, separator: str) -> str:
    """Return GitHub's anchor of a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", separator)


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages, the changelog, and pictures from elsewhere in the repository."""
    sys.path.insert(0, str(Path(__file__).parent))
    import reference

    pages = reference.pages() | {"changelog.md": (ROOT / "CHANGELOG.md").read_text()}
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    for picture in (ROOT / "benchmarks" / "results").glob("*.png"):
        files.append(File.generated(config, f"images/results/{picture.name}", abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links out of `docs/` to what the site has: reference, pictures, changelog. Others become their text."""
    here = (ROOT / "docs" / page.file.src_uri).parent
    up = "../" * page.file.src_uri.count("/")

    def replace(found: re.Match[str]) -> str:
        image, text, target, _anchor = found.groups()
        goal = (here / target).resolve()
        if goal.is_relative_to(ROOT / "docs"):
            return found[0]
        if not goal.exists() and not page.file.src_uri.startswith("reference/"):
            raise FileNotFoundError(f"{page.file.src_uri}: {target}")
        if goal.is_relative_to(ROOT) and (generated := GENERATED.get(goal.relative_to(ROOT).as_posix())):
            return f"[{text}]({up}{generated})"
        if image:
            return f"![{text}]({up}images/results/{goal.name})"
        return f"[{text}]({up}changelog.md)" if goal.name == "CHANGELOG.md" else text

    return _LINK.sub(replace, markdown)
