"""Pictures that clients give: only files that came through Gradio's upload, never a path or an address of their own."""

import os
from typing import Any

from gradio.processing_utils import get_upload_folder

from tpu_ui.errors import InvalidRequest


def uploaded(value: Any) -> str | None:
    """The path of an uploaded file; None where there is none.

    Args:
        value: a path as a component hands it over, or an API client's `{"path": ...}`.

    Raises:
        InvalidRequest: it is not such a file. Whether another one exists is not told.
    """
    if value is None or value == "":
        return None
    path = value.get("path") if isinstance(value, dict) else value
    named = get_upload_folder()
    folder = os.path.realpath(named)
    try:
        real = os.path.realpath(path) if isinstance(path, str) else ""
    except ValueError:  # a NUL in it
        real = ""
    if not real.startswith(folder + os.sep) or not os.path.isfile(real):
        raise InvalidRequest(
            "image", "is not a file that was uploaded.", "Upload the picture, and give the path that was answered."
        )
    return os.path.join(named, os.path.relpath(real, folder))  # under the name that clients know
