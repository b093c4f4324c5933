"""Files that others leave in folders: an operating system, an editor, a person who copies something."""

from __future__ import annotations

from pathlib import Path


class Strangers:
    """Puts strange files into every folder below some folders, and says which of them are gone or changed."""

    def __init__(self, outside: Path) -> None:
        outside.mkdir()
        (outside / "precious.txt").write_text("of somebody")
        self._outside = outside
        self._put: dict[Path, bytes] = {}

    def fill(self, *roots: Path, copies: bool = True) -> int:
        """Put strange files into each folder that has none yet, copies of what is there among them. How many folders there are."""
        folders = [root for root in roots if root.is_dir()]
        for root in list(folders):
            folders += [path for path in root.rglob("*") if path.is_dir() and not path.is_symlink()]
        for folder in folders:
            if (folder / "note.txt").exists() or folder.name == "New Folder":
                continue
            files = sorted(path for path in folder.iterdir() if path.is_file() and not path.is_symlink())
            for name in (".DS_Store", "note.txt", "._AppleDouble", "00000099 copy.log", "99-notes", "b.tmp"):
                self._write(folder / name, name.encode())
            for file in files[:4] if copies else ():
                self._write(file.with_name(f"{file.stem} copy{file.suffix}"), file.read_bytes())
                self._write(file.with_name(f"{file.name}.bak"), file.read_bytes())
            (folder / "New Folder").mkdir()
            self._write(folder / "New Folder" / "inside.txt", b"inside")
            (folder / "link").symlink_to(self._outside)
        return len(folders)

    def _write(self, path: Path, data: bytes) -> None:
        path.write_bytes(data)
        self._put[path] = data

    def gone(self) -> list[Path]:
        """The strange files that are not as they were."""
        lost = [path for path, data in self._put.items() if not path.exists() or path.read_bytes() != data]
        precious = self._outside / "precious.txt"
        return lost + ([] if precious.exists() else [precious])
