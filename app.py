"""Start the page: python app.py --help"""

import logging
import sys
from dataclasses import replace

from huggingface_hub import get_token

from tpu_ui.catalogue import default_model_on
from tpu_ui.errors import TpuUiError
from tpu_ui.hardware import choose_device
from tpu_ui.page.options import parse_options
from tpu_ui.page.serve import HideSecrets, announce, serve, wait_for_end
from tpu_ui.parallel.setup import OuterLaunch
from tpu_ui.parallel.starting import run_launched_rank
from tpu_ui.settings import read_settings


def main() -> int:
    """Parse, build, launch, wait; 0 after a quiet end, 1 for a fault, 2 for a mistake of the user."""
    try:
        options = parse_options()
        logging.basicConfig(level=options.log_level.upper(), format="%(levelname)s %(name)s: %(message)s")
        passwords = [password for _, password in options.auth]
        for handler in logging.getLogger().handlers:
            handler.addFilter(HideSecrets([get_token() or "", *passwords]))
        settings = read_settings()
        if options.hub_cache is not None:
            settings = replace(settings, hub_cache_dir=options.hub_cache)
        if options.loras is not None:
            settings = replace(settings, lora_dir=options.loras)
        if options.tensor_parallel and (outer := OuterLaunch.find()) is not None and outer.rank > 0:
            choice = choose_device(options.device)
            model = options.model or default_model_on(choice.kind)
            run_launched_rank(choice, settings, model, options.tensor_parallel, outer)
            return 0
        with serve(options, settings) as served:
            print("\n".join(announce(options, served)), flush=True)
            wait_for_end()
            print("Closing. A compile that is running ends first.", flush=True)
        return 0
    except TpuUiError as error:
        print(f"tpu_ui: {error}", file=sys.stderr)
        return 2 if error.is_users_mistake else 1


if __name__ == "__main__":
    sys.exit(main())
