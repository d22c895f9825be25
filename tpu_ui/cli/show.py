"""`devices`, `models` and `cache`: what there is."""

import argparse
import json
import time

from tpu_ui.catalogue import CATALOGUE
from tpu_ui.compile_cache import CompileCache
from tpu_ui.devices import describe_devices
from tpu_ui.ledger import GraphLedger
from tpu_ui.settings import parse_bytes, read_settings

_CACHE_COLUMNS = (
    "model", "stage", "size", "batch", "mode", "placement", "state", "graphs", "compile_seconds", "bytes", "last_used",
)  # fmt: skip


def devices(options: argparse.Namespace) -> int:
    facts = describe_devices(read_settings())
    if options.json:
        print(json.dumps(facts, indent=2))
    else:
        width = max(map(len, facts))
        print("\n".join(f"{name.replace('_', ' '):<{width}}  {value}" for name, value in facts.items()))
    return 0


def models(options: argparse.Namespace) -> int:
    rows = [
        {
            "id": card.id,
            "label": card.label,
            "pipeline": card.pipeline_class,
            "size": f"{card.default_width}x{card.default_height}",
            "steps": card.default_steps,
            "guidance": card.default_guidance,
            "gated": card.gated,
            "licence": card.licence,
            "link": card.link,
        }
        for card in CATALOGUE
    ]
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        print_table(rows, ("id", "label", "size", "steps", "guidance", "licence", "link"))
    return 0


def cache(options: argparse.Namespace) -> int:
    settings = read_settings()
    cache = CompileCache(settings.compile_cache_dir)
    ledger = GraphLedger(settings.ledger_path, cache)
    if options.action == "prune":
        budget = settings.cache_budget_bytes if options.to is None else parse_bytes("--to", options.to)
        files, freed = cache.prune(budget, dict(ledger.files_by_last_use()))
        result = {"files_removed": files, "bytes_freed": freed, "bytes_left": cache.total_bytes()}
        print(json.dumps(result) if options.json else f"{files} files removed, {freed:,} bytes freed.")
        return 0
    rows = [
        {
            "model": record.key.model,
            "stage": record.key.stage,
            "size": f"{record.key.width}x{record.key.height}" if record.key.height else f"{record.key.tokens or '-'}",
            "batch": record.key.batch,
            "mode": record.key.mode,
            "placement": record.key.placement,
            "chip": dict(record.key.toolchain).get("chip"),
            "state": ledger.state(record.key).value,
            "graphs": record.graphs,
            "compile_seconds": round(record.compile_seconds, 2),
            "seconds_per_step": record.step_seconds,
            "bytes": record.disk_bytes,
            "last_used": time.strftime("%Y-%m-%d %H:%M", time.localtime(record.last_used)),
        }
        for record in ledger.records()
    ]
    if options.json:
        print(json.dumps({"folder": str(cache.root), "bytes": cache.total_bytes(), "keys": rows}, indent=2))
    else:
        print(f"{cache.root}: {cache.total_bytes():,} bytes of at most {settings.cache_budget_bytes:,}")
        print_table(rows, _CACHE_COLUMNS)
    ledger.close()
    return 0


def print_table(rows: list[dict], columns: tuple[str, ...]) -> None:
    """Rows as text, each column as wide as its widest cell."""
    cells = [[str(row[column]) for column in columns] for row in rows]
    widths = [max(len(text) for text in column) for column in zip(columns, *cells, strict=True)]
    for line in (columns, *cells):
        print("  ".join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True)).rstrip())
