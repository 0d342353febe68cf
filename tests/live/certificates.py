"""Certificates for tests, made by the command `openssl`: a CA, and what it signs."""

import subprocess
from pathlib import Path

CONFIG = """
[ca]
default_ca = tests
[tests]
new_certs_dir = {folder}
database = {folder}/index
serial = {folder}/serial
default_md = sha256
unique_subject = no
policy = anything
[anything]
commonName = supplied
"""


class Authority:
    """A CA in a folder of its own; `file` is what a client is told."""

    def __init__(self, folder: Path, name: str = "tests") -> None:
        self.folder = folder / name
        self.folder.mkdir()
        self.file, self._key = self.folder / "ca.pem", self.folder / "ca.key"
        self._signed = 0
        (self.folder / "index").touch()
        (self.folder / "serial").write_text("1000\n")
        (self.folder / "config").write_text(CONFIG.format(folder=self.folder))
        self._openssl(
            *(
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-days",
                "30",
            ),
            *("-keyout", str(self._key), "-out", str(self.file), "-subj", f"/CN={name}"),
        )

    def sign(
        self, name: str, dates: tuple[str, str] = ("20200101000000Z", "20990101000000Z")
    ) -> tuple[Path, Path]:
        """Certificate and key for `IP:...` or `DNS:...`, valid between two dates."""
        self._signed += 1
        stem = self.folder / f"{self._signed}"
        key, request, made = (stem.with_suffix(end) for end in (".key", ".csr", ".pem"))
        (self.folder / "names").write_text(f"subjectAltName={name}\n")
        self._openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", str(key), "-out", str(request), "-subj", f"/CN={stem.name}"),
        )
        self._openssl(
            *("ca", "-batch", "-notext", "-config", str(self.folder / "config"), "-rand_serial"),
            *("-cert", str(self.file), "-keyfile", str(self._key), "-in", str(request), "-out", str(made)),
            *("-startdate", dates[0], "-enddate", dates[1], "-extfile", str(self.folder / "names")),
        )
        key.chmod(0o600)
        return made, key

    def _openssl(self, *words: str) -> None:
        done = subprocess.run(["openssl", *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
