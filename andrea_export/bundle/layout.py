"""Where everything lies in a bundle: the folder's layout, and whether a folder holds anything else.

A target's files are named in its own folder; what every bundle has beside them is named here.
"""

from pathlib import Path, PurePosixPath

from andrea_export.targets.onnx.files import MODEL, WEIGHTS
from andrea_export.targets.registry import REGISTRY, target_of
from andrea_export.targets.tensorrt.flavours import PLUGIN
from andrea_export.tokens.files import TOKENIZER_FILES

__all__ = ["MANIFEST", "MODEL", "PLUGIN", "REPORT", "SCHEMA", "WEIGHTS", "stranger_in"]

SCHEMA = "andrea-export/manifest/3"
MANIFEST = "manifest.json"
REPORT = "report.json"


def stranger_in(folder: Path) -> str | None:
    """The first thing in a folder that no build made; None for an empty folder and for a bundle, damaged or not.

    ``manifest.json`` is a common name, so having one does not make a folder a bundle: every file must have a name that
    bundles have, and there must be a model or a manifest of ours.
    """
    patterns = (
        MANIFEST,
        REPORT,
        *TOKENIZER_FILES,
        *(pattern for target in REGISTRY for pattern in target_of(target).artifacts),
    )
    names = [file.relative_to(folder).as_posix() for file in sorted(folder.rglob("*")) if not file.is_dir()]
    for name in names:
        if not any(PurePosixPath(name).match(one) and name.count("/") == one.count("/") for one in patterns):
            return name
    if MANIFEST in names and MODEL not in names:
        with (folder / MANIFEST).open("rb") as file:
            if SCHEMA.encode() not in file.read(4096):
                return MANIFEST
    return None
