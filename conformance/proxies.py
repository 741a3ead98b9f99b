"""A TCP proxy that can be cut: its connections close, and new ones are refused until it is restored."""

import socket
import threading

from fleet import HOST


class Proxy:
    """Forwards connections to `port` on this machine; a context manager that closes them."""

    def __init__(self):
        self.port = None
        self.listener = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self.listener.getsockname()[1]}"
        self.lock = threading.Lock()
        self.is_cut, self.open = False, set()

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_exception):
        # This wakes the accepting thread; closing alone does not.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.cut()

    def cut(self):
        """The number of connections so far."""
        with self.lock:
            self.is_cut = True
            ends, self.open = self.open, set()
            for end in ends:
                self._end(end)
        return len(ends) // 2

    def restore(self):
        with self.lock:
            self.is_cut = False

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._join, args=(near,), daemon=True).start()

    def _join(self, near):
        with near:
            try:
                far = socket.create_connection((HOST, self.port))
            except OSError:
                return
            with far:
                with self.lock:
                    if self.is_cut:
                        return
                    self.open |= {near, far}
                back = threading.Thread(target=self._carry, args=(far, near), daemon=True)
                back.start()
                self._carry(near, far)
                back.join()
                with self.lock:
                    self.open -= {near, far}

    @staticmethod
    def _carry(source, target):
        """Closes both ends when one closes."""
        try:
            while data := source.recv(65536):
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            Proxy._end(end)

    @staticmethod
    def _end(connection):
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the other side was first
