"""Asks a SavedModel through TensorFlow's C API, without TensorFlow's Python.

    python -I tests/c_loader.py FOLDER_OF_LIBRARIES MODEL FOLDER_OF_REQUESTS

`TF_LoadSessionFromSavedModel` is the C++ loader that TensorFlow Serving builds on. A request
`NAME.npz` holds an array for each tensor to feed and an empty one for each to fetch, named
`feed/OP:0` and `fetch/OP:0`; a list of files is a row of uint8 each, named `files/OP:0/I`. Its
answer, `NAME.answer.npz`, has the names of what was fetched; `NAME.error` says why there is none.
"""

import ctypes
import pathlib
import sys
from ctypes import c_char_p, c_int, c_int64, c_size_t, c_ubyte, c_void_p

import numpy as np

STRING, STRING_BYTES = 7, 24
TYPES = {1: "float32", 2: "float64", 3: "int32", 4: "uint8", 9: "int64", 10: "bool"}

POINTERS = {
    "TF_AllocateTensor": [c_int, ctypes.POINTER(c_int64), c_int, c_size_t],
    "TF_GraphOperationByName": [c_void_p, c_char_p],
    "TF_LoadSessionFromSavedModel": [
        *(c_void_p, c_void_p, c_char_p, ctypes.POINTER(c_char_p), c_int, *[c_void_p] * 3),
    ],
    "TF_NewGraph": [],
    "TF_NewSessionOptions": [],
    "TF_NewStatus": [],
    "TF_StringGetDataPointer": [c_void_p],
    "TF_TensorData": [c_void_p],
}


class Output(ctypes.Structure):
    _fields_ = [("operation", c_void_p), ("index", c_int)]


class Library:
    def __init__(self, folder):
        for name in ("framework", "cc"):
            self.library = ctypes.CDLL(
                f"{folder}/libtensorflow_{name}.so.2", mode=ctypes.RTLD_GLOBAL
            )
        for name, arguments in POINTERS.items():
            function = getattr(self.library, name)
            function.restype, function.argtypes = c_void_p, arguments
        self.library.TF_Message.restype = c_char_p
        for name in ("TF_Dim", "TF_StringGetSize", "TF_TensorByteSize"):
            getattr(self.library, name).restype = c_int64
        self.status = c_void_p(self.library.TF_NewStatus())

    def check(self):
        if self.library.TF_GetCode(self.status):
            raise RuntimeError(self.library.TF_Message(self.status).decode())

    def load(self, path):
        graph = c_void_p(self.library.TF_NewGraph())
        options = c_void_p(self.library.TF_NewSessionOptions())
        tags = (c_char_p * 1)(b"serve")
        session = self.library.TF_LoadSessionFromSavedModel(
            options, None, path.encode(), tags, 1, graph, None, self.status
        )
        self.check()
        return graph, c_void_p(session)

    def tensor(self, array):
        """A TF_Tensor with the content of an array, or of a list of bytes."""
        strings = isinstance(array, list)
        shape = (len(array),) if strings else array.shape
        code = STRING if strings else {name: code for code, name in TYPES.items()}[str(array.dtype)]
        size = STRING_BYTES * len(array) if strings else array.nbytes
        tensor = self.library.TF_AllocateTensor(
            code, (c_int64 * len(shape))(*shape), len(shape), size
        )
        data = self.library.TF_TensorData(c_void_p(tensor))
        if not strings:
            ctypes.memmove(data, np.ascontiguousarray(array).ctypes.data, size)
        for i, text in enumerate(array if strings else ()):
            place = c_void_p(data + i * STRING_BYTES)
            self.library.TF_StringInit(place)
            self.library.TF_StringCopy(place, text, c_size_t(len(text)))
        return tensor

    def array(self, tensor):
        tensor = c_void_p(tensor)
        shape = [self.library.TF_Dim(tensor, i) for i in range(self.library.TF_NumDims(tensor))]
        code = self.library.TF_TensorType(tensor)
        data = self.library.TF_TensorData(tensor)
        if code != STRING:
            size = self.library.TF_TensorByteSize(tensor)
            raw = bytes((c_ubyte * size).from_address(data)) if size else b""
            return np.frombuffer(raw, TYPES[code]).reshape(shape)
        texts = []
        for i in range(int(np.prod(shape))):
            place = c_void_p(data + i * STRING_BYTES)
            texts.append(
                ctypes.string_at(
                    self.library.TF_StringGetDataPointer(place),
                    self.library.TF_StringGetSize(place),
                )
            )
        return np.array(texts, "S" if texts else "S1").reshape(shape)

    def outputs(self, graph, names):
        found = (Output * len(names))()
        for output, name in zip(found, names, strict=True):
            operation, _, index = name.rpartition(":")
            output.operation = self.library.TF_GraphOperationByName(graph, operation.encode())
            output.index = int(index)
            if not output.operation:
                raise RuntimeError(f"no operation {operation}")
        return found

    def run(self, graph, session, feeds, fetches):
        tensors = [self.tensor(value) for value in feeds.values()]
        answers = (c_void_p * len(fetches))()
        self.library.TF_SessionRun(
            *(session, None),
            *(self.outputs(graph, feeds), (c_void_p * len(feeds))(*tensors), len(feeds)),
            *(self.outputs(graph, fetches), answers, len(fetches)),
            *(None, 0, None, self.status),
        )
        self.check()
        return [self.array(answer) for answer in answers]


def read(path):
    """Feeds by tensor, and the tensors to fetch."""
    feeds, fetches = {}, []
    with np.load(path) as asked:
        for name in asked:
            kind, _, tensor = name.partition("/")
            if kind == "feed":
                feeds[tensor] = asked[name]
            elif kind == "files":
                feeds.setdefault(tensor.rpartition("/")[0], []).append(asked[name].tobytes())
            else:
                fetches.append(tensor)
    return feeds, fetches


def main(libraries, model, requests):
    if "tensorflow" in sys.modules:
        sys.exit("expected a process without TensorFlow's Python, received one with it")
    library = Library(libraries)
    graph, session = library.load(model)
    for path in sorted(pathlib.Path(requests).glob("*.npz")):
        feeds, fetches = read(path)
        try:
            found = library.run(graph, session, feeds, fetches)
        except RuntimeError as error:
            path.with_suffix(".error").write_text(str(error))
        else:
            np.savez(path.with_suffix(".answer.npz"), **dict(zip(fetches, found, strict=True)))


if __name__ == "__main__":
    main(*sys.argv[1:])
