"""How many bytes of tensors a computation holds at once: counted, the same on every machine."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that are made inside its `with` block and still exist.

    Tensors that share memory count once, those made before the block not at all. It sees what
    every operation returns, in the forward and in the backward pass, on any device. What one
    operation takes and gives back within itself, and what an allocator keeps in reserve, it
    does not see.

    Attributes:
        live: bytes that exist now.
        peak: the largest value that `live` has had.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self._alive: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        given = {id(storage) for storage in _storages((args, kwargs))}
        result = func(*args, **kwargs)
        for storage in _storages(result):
            # A view, or an update in place, returns what it was given.
            if id(storage) not in given and id(storage) not in self._alive:
                self._add(storage)
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        self._alive.add(id(storage))
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._remove, id(storage), storage.nbytes()).atexit = False

    def _remove(self, storage_id: int, n_bytes: int) -> None:
        self._alive.discard(storage_id)
        self.live -= n_bytes


def _storages(tree: Any) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
