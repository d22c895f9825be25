"""All replicas behind the interface of a PipelineManager, for the page; and behind that of a pool, for the queue."""

import functools
from collections.abc import Callable, Collection, Mapping

from tpu_ui.compile_cache import CompileCache
from tpu_ui.errors import TpuUiError
from tpu_ui.forecast import Forecast, forecast
from tpu_ui.graphs import GraphKey
from tpu_ui.hardware import DeviceChoice
from tpu_ui.job import Choice, MemberStatus
from tpu_ui.parallel.mirror import MirroredLedger, MirroredRuntime
from tpu_ui.replicas.choice import Offer, choose_offer
from tpu_ui.replicas.cluster import Cluster
from tpu_ui.replicas.engine import ReplicaEngine
from tpu_ui.report import Report
from tpu_ui.request import GenerationRequest
from tpu_ui.resolution import ResolvedRequest
from tpu_ui.resolver import Resolver
from tpu_ui.settings import Settings


class ReplicaPool:
    """See `job.Pool` and `page.verdict.ForeseeingEngine`. Must be closed on the thread that makes it.

    The ledger calls a key warm that is warm in any replica. A verdict is that of the replica that the request would get
    if it were asked for now.

    Args:
        replicas: how many; None is one for each chip.
        address: see `Cluster`.
        cancelled: whether nobody waits for the replicas any more; asked until the first is ready.

    Raises:
        JobCancelled: `cancelled` said so.
        TpuUiError: Ray cannot be started or joined, or no replica can open its device.
    """

    def __init__(
        self,
        choice: DeviceChoice,
        settings: Settings,
        model: str,
        replicas: int | None,
        address: str | None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self._cluster = Cluster(choice, settings, model, replicas, address)
        self._load_seconds: dict[str, float] = {}  # the last, by model
        self.runtime = MirroredRuntime(choice.kind)
        self.cache = CompileCache(settings.compile_cache_dir)
        new_ledger: Callable[[], MirroredLedger] = functools.partial(MirroredLedger, settings.ledger_path, self.cache)
        self.ledger = new_ledger()
        self.members = tuple(
            ReplicaEngine(number + 1, self._cluster.spawn, new_ledger(), self._expected, self._mirror, self._learn)
            for number in range(self._cluster.replicas)
        )
        for member in self.members:
            member.spawn()
        self.toolchain: dict[str, str] = {}
        self.resolver = Resolver(choice.kind, settings, model, lambda: self.runtime.known.total_bytes)
        try:
            self._open_first(cancelled)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for member in self.members:
            member.leave()
        for member in self.members:
            member.close()
        self.ledger.close()
        self._cluster.close()

    def _open_first(self, cancelled: Callable[[], bool]) -> None:
        """Wait for one; the queue opens the others, each on its own thread."""
        for member in self.members:
            try:
                member.open(cancelled)
            except TpuUiError:
                if member is self.members[-1]:
                    raise
            else:
                self.toolchain = member.ready.toolchain
                return

    # -- any thread ---------------------------------------------------------------------------------------------------

    def foresee(self, request: GenerationRequest) -> tuple[ResolvedRequest, Forecast]:
        """See `PipelineManager.foresee`. No replica is asked."""
        resolved, keys = self._resolve(request)
        return resolved, choose_offer(self._offers(resolved, keys)).forecast

    def choose(self, request: GenerationRequest, idle: Collection[int], reserved: Mapping[int, float]) -> Choice:
        """See `job.Pool.choose`."""
        try:
            resolved, keys = self._resolve(request)
        except TpuUiError:  # the replica will say it, or download what is missing
            return Choice(min(idle), None)
        offers = [
            offer for offer in self._offers(resolved, keys, reserved) if offer.place in idle or not offer.is_idle
        ]  # fmt: skip
        chosen = choose_offer(offers)
        return Choice(chosen.place, chosen.seconds)

    def statuses(self) -> list[MemberStatus]:
        return [member.status() for member in self.members]

    def _resolve(self, request: GenerationRequest) -> tuple[ResolvedRequest, list[GraphKey]]:
        resolved, _ = self.resolver.resolve(request)
        return resolved, list(self.resolver.graph_keys(resolved, self.toolchain).values())

    def _offers(
        self, resolved: ResolvedRequest, keys: list[GraphKey], reserved: Mapping[int, float] | None = None
    ) -> list[Offer]:
        """One of each replica that is up; of all where none is."""
        reserved = reserved or {}
        digests = {key.digest for key in keys}
        forecasts: dict[tuple, Forecast] = {}  # many replicas know the same
        offers = []
        members = [(place, member) for place, member in enumerate(self.members) if not member.is_lost]
        for place, member in members or enumerate(self.members):
            view = tuple(frozenset(known) & digests for known in map(frozenset, member.ledger.in_this_process()))
            if view not in forecasts:
                forecasts[view] = forecast(member.ledger, keys, resolved.steps_run, resolved.runs)
            wait = member.wait_seconds
            is_loaded = member.loaded_model == resolved.card.id
            load = 0.0 if is_loaded else self._load_seconds.get(resolved.card.id)
            wait = None if wait is None else wait + reserved.get(place, 0.0)
            offers.append(Offer(place, wait, load, forecasts[view]))
        return offers

    # -- the replicas' threads ----------------------------------------------------------------------------------------

    def _expected(self, member: ReplicaEngine, request: GenerationRequest) -> float | None:
        try:
            resolved, keys = self._resolve(request)
        except TpuUiError:
            return None
        place = self.members.index(member)
        return next((offer.seconds for offer in self._offers(resolved, keys) if offer.place == place), None)

    def _learn(self, member: ReplicaEngine, report: Report) -> None:
        if report.model is not None and member.loaded_model != report.model:
            self._load_seconds[report.model] = report.timings.load

    def _mirror(self) -> None:
        """What is warm or being compiled in any replica; of what is both, the page says warm."""
        known = [member.ledger.in_this_process() for member in self.members]
        warm = dict.fromkeys(digest for warm, _ in known for digest in warm)
        compiling = dict.fromkeys(digest for _, compiling in known for digest in compiling if digest not in warm)
        self.ledger.mirror(tuple(warm), tuple(compiling))
        memories = [member.memory for member in self.members if member.memory.total_bytes]
        if memories:
            self.runtime.known = memories[0]
