"""The text encoders' results of the last prompts: a prompt that comes again skips the encoders."""

import inspect
from collections.abc import Callable, Hashable
from typing import Any

import torch

MAX_BYTES = 64 * 2**20
"""Of one pipeline, in device memory, within the planner's room for programs. FLUX.2's text takes 15 MiB a picture,
FLUX.1's 4 MiB."""


class KeptText:
    """Belongs to one pipeline and to the device thread.

    The tensors stay on the device as they came, so that whatever reads them runs the same graphs on the same bits.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._results: dict[Hashable, Any] = {}  # the last used at the end

    def encode(
        self, encode_prompt: Callable[..., Any], args: tuple, kwargs: dict[str, Any], ran_as: Hashable, recall: bool
    ) -> tuple[Any, bool]:
        """Call a pipeline's `encode_prompt`, or hand out what it returned to equal arguments.

        Args:
            ran_as: what else decides the result: it is recalled only under an equal value.
            recall: an earlier result may be used; if not, the new one takes its place.

        Returns:
            The result, and whether it was recalled.
        """
        key = _key(encode_prompt, args, kwargs, ran_as)
        if recall and key in self._results:
            self._results[key] = self._results.pop(key)
            return _in_new_containers(self._results[key]), True
        result = encode_prompt(*args, **kwargs)
        if key is not None:
            self._keep(key, _in_new_containers(result))
        return result, False

    def clear(self) -> None:
        """Forget all: the text encoders are others now, or go."""
        self._results.clear()

    @property
    def bytes(self) -> int:
        return sum(_bytes_of(result) for result in self._results.values())

    def _keep(self, key: Hashable, result: Any) -> None:
        self._results.pop(key, None)
        if _bytes_of(result) > self._max_bytes:
            return
        self._results[key] = result
        while self.bytes > self._max_bytes:
            del self._results[next(iter(self._results))]


def _key(encode_prompt: Callable, args: tuple, kwargs: dict[str, Any], ran_as: Hashable) -> Hashable | None:
    """None where an argument cannot be compared, such as a tensor."""
    bound = inspect.signature(encode_prompt).bind(*args, **kwargs)
    bound.apply_defaults()
    try:
        return ran_as, tuple((name, _comparable(value)) for name, value in bound.arguments.items())
    except TypeError:
        return None


def _comparable(value: Any) -> Hashable:
    if isinstance(value, list | tuple):
        return tuple(_comparable(each) for each in value)
    if value is None or isinstance(value, str | bool | int | float | torch.device):
        return value
    raise TypeError


def _in_new_containers(result: Any) -> Any:
    """The same tensors: a pipeline may fill a list that it was given, not a tensor."""
    if isinstance(result, list | tuple):
        return type(result)(_in_new_containers(each) for each in result)
    return result


def _bytes_of(result: Any) -> int:
    if isinstance(result, list | tuple):
        return sum(_bytes_of(each) for each in result)
    return result.nbytes if isinstance(result, torch.Tensor) else 0
