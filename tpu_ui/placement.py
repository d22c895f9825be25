"""Where a pipeline's weights live while it runs."""

from enum import StrEnum

from tpu_ui.errors import InvalidRequest, shown


class Placement(StrEnum):
    """The value is the word used on the command line. AUTO is resolved before anything is loaded."""

    AUTO = "auto"
    SINGLE = "single"
    CPU_OFFLOAD = "cpu_offload"
    TENSOR_PARALLEL = "tensor_parallel"

    @property
    def explanation(self) -> str:
        return {
            "auto": "one chip where the whole pipeline fits, else model CPU offload; `plan` tells why",
            "single": "the whole pipeline stays on one chip",
            "cpu_offload": "each model moves to the chip when it runs, and leaves when another needs its room",
            "tensor_parallel": "the transformer is split over several chips (app.py --tensor-parallel)",
        }[self.value]


def parse_placement(value: object) -> Placement:
    """Read a placement from a request.

    Raises:
        InvalidRequest: `value` is not a placement's name.
    """
    for placement in Placement:
        if placement == value:
            return placement
    allowed = ", ".join(placement.value for placement in Placement)
    raise InvalidRequest("placement", f"{shown(value)} is not a placement.", f"Choose one of {allowed}.")
