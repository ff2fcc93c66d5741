"""Wheels of a few hundred bytes: what an installer needs of a package, and a module that says it."""

import zipfile
from pathlib import Path


def make_wheel(
    folder: Path, name: str, version: str, needs: tuple[str, ...] = (), module: str = ""
) -> Path:
    """A wheel for any Python whose module `name`, if it has one, is the code `module`."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{name.replace('-', '_')}-{version}"
    files = {
        f"{stem}.dist-info/METADATA": "\n".join(
            ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
            + [f"Requires-Dist: {need}" for need in needs]
            + [""]
        ),
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\n"
        "Root-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if module:
        files[f"{name.replace('-', '_')}.py"] = module
    files[f"{stem}.dist-info/RECORD"] = "".join(f"{path},,\n" for path in files)
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in files.items():
            archive.writestr(inside, text)
    return path
