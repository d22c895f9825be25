"""What every process of a group is told when it starts, and how long they wait for one another."""

import base64
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field

from tpu_ui.errors import InvalidRequest
from tpu_ui.settings import Settings

_SETUP_VARIABLE = "TPU_UI_RANK_SETUP"


@dataclass(frozen=True)
class Limits:
    """Seconds.

    Attributes:
        partners: until all processes that another launcher started have come, once the first is there.
        joining: until all ranks have their device open.
        beat: between two signs of life of a rank.
        silent: without a sign of life; a rank's interpreter may be busy for long while it imports or loads.
        stall: without any rank going on, where a graph may be compiled: large ones take 25 minutes.
        warm_stall: the same where nothing is compiled.
        fault: a rank has failed in a step, and the others have not come to the step's end.
        ending: for ranks to end by themselves, before they are killed.
    """

    partners: float = 10.0
    joining: float = 600.0
    beat: float = 1.0
    silent: float = 60.0
    stall: float = 3600.0
    warm_stall: float = 300.0
    fault: float = 15.0
    ending: float = 10.0


@dataclass(frozen=True)
class Setup:
    """One group.

    Attributes:
        device_kind: one of modes.DEVICE_KINDS.
        model: the default model.
        devices: ranks in the group, each with one device.
        front: path of the socket on which the front waits for rank 0.
        front_key: the socket's password.
    """

    device_kind: str
    settings: Settings
    model: str
    devices: int
    limits: Limits = field(default_factory=Limits)
    front: str = ""
    front_key: bytes = b""

    def to_environment(self) -> dict[str, str]:
        """For a child of this process; not for reading from anywhere else."""
        return {_SETUP_VARIABLE: base64.b64encode(pickle.dumps(self)).decode()}

    @classmethod
    def from_environment(cls) -> "Setup":
        """What the parent of this process wrote; it is taken out, so that no child of this process has it."""
        return pickle.loads(base64.b64decode(os.environ.pop(_SETUP_VARIABLE)))


@dataclass(frozen=True)
class OuterLaunch:
    """The place of this process in a world that another launcher started, such as torchrun on several hosts.

    Attributes:
        has_agent: torchrun's agent, which serves the store where the ranks meet.
    """

    rank: int
    world_size: int
    local_rank: int
    address: str
    port: int
    has_agent: bool

    @classmethod
    def find(cls, environ: Mapping[str, str] = os.environ) -> "OuterLaunch | None":
        """None where no launcher has set RANK and WORLD_SIZE.

        Raises:
            InvalidRequest: only some of the variables are set, or they do not fit together.
        """
        if "RANK" not in environ and int(environ.get("WORLD_SIZE") or 1) <= 1:
            return None
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
        missing = [name for name in names if not environ.get(name)]
        remedy = "Start it with torchrun, or unset RANK and WORLD_SIZE."
        if missing:
            raise InvalidRequest("RANK", f"a launcher's {' and '.join(missing)} is missing.", remedy)
        try:
            rank, world_size, local_rank = (int(environ[name]) for name in names[:3])
            port = int(environ["MASTER_PORT"])
        except ValueError:
            raise InvalidRequest("RANK", "a launcher's variable is no number.", remedy) from None
        if not 0 <= rank < world_size or not 0 <= local_rank < world_size or not 0 < port < 65536:
            raise InvalidRequest("RANK", f"{rank} of WORLD_SIZE={world_size} is not possible.", remedy)
        has_agent = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return cls(rank, world_size, local_rank, environ["MASTER_ADDR"], port, has_agent)
