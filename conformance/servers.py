"""Redis and PostgreSQL as processes of a fleet, on loopback, without passwords and without a past."""

import functools
import glob
import os
import pwd
import shutil
import socket
import subprocess

from fleet import HOST, free_ports


class Missing(Exception):
    """A server that is not installed here; the text says how to get it."""


class Redis:
    """A Redis server."""

    def __init__(self, fleet, name="redis"):
        program = shutil.which("redis-server")
        if not program:
            raise Missing("redis-server is not installed: apt-get install redis-server")
        (self.port,) = free_ports(1)
        folder = fleet.dir / name
        folder.mkdir()
        fleet.app(f"app-{name}", [program, "--bind", HOST, "--port", str(self.port), "--dir", str(folder),
                                  "--save", "", "--appendonly", "no"], self.port)
        self.address = f"{HOST}:{self.port}"

    def command(self, *words, database=0):
        """Sends one command; returns its answer, not taken apart."""
        with socket.create_connection((HOST, self.port), 10) as connection:
            for line in (("SELECT", str(database)), words):
                parts = b"".join(b"$%d\r\n%s\r\n" % (len(word.encode()), word.encode()) for word in line)
                connection.sendall(b"*%d\r\n%s" % (len(line), parts))
                answer = connection.recv(65536)
                if answer.startswith(b"-"):
                    raise RuntimeError(f"redis: {line}: {answer.decode()}")
        return answer


class Postgres:
    """A PostgreSQL server. It refuses to run as root: then it runs as the account of its package."""

    def __init__(self, fleet, name="postgres"):
        folder = fleet.dir / name
        folder.mkdir()
        account = {}
        if os.geteuid() == 0:
            owner = pwd.getpwnam("postgres")
            os.chown(folder, owner.pw_uid, owner.pw_gid)
            fleet.dir.chmod(0o755)
            account = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
        self.psql = self._program("psql")
        subprocess.run(
            [self._program("initdb"), "-D", folder / "data", "-U", "postgres", "-A", "trust", "-E", "UTF8",
             "--locale=C", "--no-sync"], check=True, capture_output=True, cwd=folder, **account)
        (self.port,) = free_ports(1)
        fleet.app(f"app-{name}", [self._program("postgres"), "-D", str(folder / "data"), "-p", str(self.port),
                                  "-h", HOST, "-k", ""], self.port, **account)
        self.text = f"host={HOST} port={self.port} user=postgres dbname=postgres sslmode=disable"
        fleet.until(f"app-{name}", lambda: self.sql("SELECT 1") == "1", "SELECT 1")

    @staticmethod
    @functools.cache
    def _program(name):
        found = shutil.which(name) or next(iter(sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"))), None)
        if not found:
            raise Missing(f"{name} is not installed: apt-get install postgresql")
        return found

    def sql(self, text):
        """Runs statements; returns what they print."""
        run = subprocess.run([self.psql, "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", self.text, "-c", text],
                             capture_output=True, text=True)
        if run.returncode != 0:
            raise OSError(f"psql: {run.stderr}")
        return run.stdout.strip()
