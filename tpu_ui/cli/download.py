"""`download`: fetch a model's newest files from the Hub before they are needed."""

import argparse
import json

from tpu_ui.catalogue import complete_card, find_card
from tpu_ui.cli.progress import ProgressPrinter
from tpu_ui.cli.running import chosen_settings, results_on_stdout
from tpu_ui.errors import InvalidRequest, NotDownloaded
from tpu_ui.sources import Fetching, fetch


def run(options: argparse.Namespace) -> int:
    """Fetch the model, and print its commit and folder."""
    settings = chosen_settings(options)
    if not options.model:
        raise InvalidRequest("model", "was not given.", "Name one of `models`, or a Hub repository as org/name.")
    card = find_card(options.model)
    if card.repo_id is None:
        raise InvalidRequest("model", f"{card.label} is a folder on this machine.", "Name a model of the Hub.")
    if settings.offline:
        raise NotDownloaded("HF_HUB_OFFLINE is set, so nothing is downloaded.", "Unset it.")
    with results_on_stdout() as results, ProgressPrinter() as printer:
        folder = fetch(card, settings.hub_cache_dir, Fetching(printer.show))
    card = complete_card(card, folder, folder.path.name)
    if options.json:
        report = {"model": card.id, "revision": card.revision, "folder": str(folder.path)}
        print(json.dumps(report | {"weight_bytes": folder.weight_bytes}), file=results)
    else:
        print(f"{card.id} at commit {card.revision}: {folder.path}", file=results)
    return 0
