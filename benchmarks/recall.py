"""Recall of searches on labelled evidence: by words, by vectors, and both, with the same embeddings.

    python -m benchmarks.recall [--locomo DIRECTORY]

prints a table, writes it into `docs/performance.md`, and writes `benchmarks/results/recall.json`. Embeddings are those
of `wordllama`, whose package has its weights. The evidence is made of lists (`benchmarks/evidence.py`) and, with
`--locomo`, that of the conversations of LoCoMo, which are not ours to ship: one namespace for each conversation, one
item for each turn. Recall@10 is the share of a question's answers that are among the first ten results. Halves are of
the questions, and of LoCoMo's conversations; all were looked at when the fusion of the ranks was chosen.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from statistics import mean
from typing import Any, Final

from langgraph.store.base import PutOp

from benchmarks.__main__ import RESULTS, put_between_marks
from benchmarks.evidence import Evidence, Question, made_evidence
from benchmarks.server import open_server
from langgraph_pgstate.memory import PGMemoryStore

RESULT: Final = RESULTS / "recall.json"
DOCUMENT: Final = RESULTS.parents[1] / "docs" / "performance.md"
BEGINS, ENDS = "<!-- benchmarks.recall: begin -->", "<!-- benchmarks.recall: end -->"
DIMS: Final = 256
MODES: Final = ("vector", "words", "hybrid")
_FIRST: Final = 10
Recall = dict[str, dict[str, float]]
"""By kind of question, `all` for all, and by mode: percents."""


def offline_model() -> Callable[[Sequence[str]], list[list[float]]]:
    """Return a function that embeds texts without a network."""
    wordllama: Any = import_module("wordllama")
    model = wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
    return lambda texts: model.embed([*texts], norm=True).tolist()


def locomo(directory: Path) -> Iterator[Evidence]:
    """Yield the evidence of each conversation of LoCoMo, without the questions that have no answer."""
    for file in sorted(directory.rglob("*.json")):
        conversation = json.loads(file.read_text())
        turns = [
            turn
            for name, session in conversation.items()
            if re.fullmatch(r"session_\d+", name) and isinstance(session, list)
            for turn in session
        ]
        memories = {
            turn["dia_id"]: f"{turn['speaker']}: {turn['text']} {turn.get('blip_caption', '')}" for turn in turns
        }
        questions = [
            Question(f"category {one['category']}", one["question"], answers)
            for one in conversation.get("qa", ())
            if one["category"] != 5 and (answers := frozenset(one["evidence"]) & memories.keys())
        ]
        yield Evidence(memories, questions)


def recall(store: PGMemoryStore, namespace: tuple[str, ...], evidence: Evidence) -> Recall:
    """Store the memories, ask the questions in each mode, and return how many of the answers are found."""
    store.batch([PutOp(namespace, key, {"text": text}) for key, text in evidence.memories.items()])
    found: dict[str, dict[str, list[float]]] = {}
    for question in evidence.questions:
        for mode in MODES:
            first = {one.key for one in store.search(namespace, query=question.text, limit=_FIRST, mode=mode)}
            share = 100 * len(first & question.answers) / len(question.answers)
            for kind in (question.kind, "all"):
                found.setdefault(kind, {}).setdefault(mode, []).append(share)
    return {kind: {mode: mean(shares) for mode, shares in modes.items()} for kind, modes in sorted(found.items())}


def table(results: dict[str, Recall]) -> str:
    """Return the table of results."""
    lines = ["| recall@10, percent | by vectors | by words | hybrid |", "|---|---|---|---|"]
    for name, result in results.items():
        for kind, modes in result.items():
            of_kind = "" if kind == "all" else f", questions by {kind}"
            lines.append(f"| {name}{of_kind} | " + " | ".join(f"{modes[mode]:.1f}" for mode in MODES) + " |")
    return "\n".join(lines) + "\n"


def measure(dsn: str, directory: Path | None = None) -> dict[str, Recall]:
    """Measure, by the name of the evidence."""
    index: Any = {"dims": DIMS, "embed": offline_model(), "fields": ["text"]}
    made, results = made_evidence(), {}
    with PGMemoryStore.from_conn_string(dsn, schema="recall", pool=False, index=index) as store:
        store.setup()
        for number, name in enumerate(("first half", "second half")):
            results[f"made, {name}"] = recall(store, ("made",), made.half(number))
        halves: list[list[tuple[int, Recall]]] = [[], []]
        conversations = [*locomo(directory)] if directory is not None else []
        for number, one in enumerate(conversations):
            asked = recall(store, ("locomo", str(number)), one)
            halves[2 * number // len(conversations)].append((len(one.questions), asked))
        for name, half in zip(("first half", "second half"), halves, strict=True):
            if half:
                total = sum(count for count, _ in half)
                results[f"LoCoMo, {name}"] = {
                    "all": {mode: sum(count * one["all"][mode] for count, one in half) / total for mode in MODES}
                }
    return results


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recall")
    parser.add_argument("--locomo", type=Path, help="directory of the conversations of LoCoMo, as JSON")
    with open_server(None) as server:
        results = measure(server.dsn, parser.parse_args().locomo)
    print(table(results))
    RESULT.write_text(json.dumps(results, indent=2) + "\n")
    put_between_marks(DOCUMENT, BEGINS, ENDS, table(results))


if __name__ == "__main__":
    main()
