"""Certificates and key files for the tests, made by the openssl command as they run."""
import os
import subprocess

CLIENT_KEY, OTHER_CLIENT_KEY, GRID_KEY, OTHER_GRID_KEY = (
    f"{name}-0123456789abcdef" for name in ("client", "client2", "grid", "grid2"))
SECRETS = [CLIENT_KEY, OTHER_CLIENT_KEY, GRID_KEY, OTHER_GRID_KEY]


def openssl(*args, **kwargs):
    return subprocess.run(["openssl", *args], check=True, capture_output=True, text=True, **kwargs)


class Papers:
    """An authority in a folder and what it certifies."""

    def __init__(self, folder, name="ca"):
        self.folder = str(folder)
        self.ca = self.path(f"{name}.pem")
        self._ca_key = self.path(f"{name}.key")
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout",
                self._ca_key, "-out", self.ca, "-days", "30", "-subj", f"/CN={name}")

    def path(self, name):
        return os.path.join(self.folder, name)

    def certify(self, name, names="DNS:localhost,IP:127.0.0.1", expired=False):
        """(certificate, key)"""
        cert, key, request, extensions = (self.path(f"{name}.{x}") for x in ("pem", "key", "csr", "ext"))
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-out", request,
                "-subj", f"/CN={name}")
        with open(extensions, "w", encoding="utf-8") as f:
            f.write(f"subjectAltName={names}\n")
        openssl("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self._ca_key, "-CAcreateserial", "-out", cert,
                "-days", "-1" if expired else "30", "-extfile", extensions)
        os.chmod(key, 0o600)
        return cert, key

    def keys(self, name, *keys):
        """A key file; an old one of that name is replaced whole."""
        path = self.path(name)
        with open(path + ".new", "w", encoding="utf-8") as f:
            f.write("# keys of a test\n" + "".join(f"{k}\n" for k in keys))
        os.chmod(path + ".new", 0o600)
        os.replace(path + ".new", path)
        return path


def bearer(key):
    return {"Authorization": f"Bearer {key}"}
