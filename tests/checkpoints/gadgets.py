"""Pickles that reach for code in ways that no checkpoint does, each as some writer of pickles would spell it."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

#: What would be called, from whichever module; ``{path}`` is the file that would be written or opened.
CALLS = (
    *("builtins.eval", "builtins.compile", "builtins.open", "builtins.input", "builtins.breakpoint", "builtins.vars"),
    *("builtins.map", "builtins.filter", "builtins.setattr", "builtins.delattr", "builtins.globals", "builtins.help"),
    *(
        "importlib.__import__",
        "importlib.reload",
        "importlib.util.spec_from_file_location",
        "importlib._bootstrap._load",
    ),
    *("importlib.machinery.SourceFileLoader", "importlib.resources.files", "pkgutil.get_data", "pkgutil.resolve_name"),
    *(
        "_io.open",
        "_io.open_code",
        "io.FileIO",
        "io.open_code",
        "codecs.decode",
        "_codecs.decode",
        "codecs.EncodedFile",
    ),
    *("functools.partialmethod", "functools.cached_property", "functools.singledispatch", "_functools.reduce"),
    *("operator.itemgetter", "operator.call", "_operator.methodcaller", "operator.setitem", "itertools.starmap"),
    *("types.MethodType", "types.ModuleType", "types.new_class", "types.DynamicClassAttribute", "_imp.create_dynamic"),
    *("subprocess.Popen", "posix.system", "nt.system", "os.execv", "os.posix_spawn", "os.putenv", "os.open"),
    *("_posixsubprocess.fork_exec", "pty.spawn", "multiprocessing.Process", "multiprocessing.context.Process"),
    *("multiprocessing.reduction.rebuild_arrow", "multiprocessing.managers.RebuildProxy", "_winapi.CreateProcess"),
    *("concurrent.futures.ProcessPoolExecutor", "threading.Timer", "_thread.start_new_thread", "sched.scheduler"),
    *("pydoc.pipepager", "pydoc.tempfilepager", "pydoc.locate", "timeit.Timer", "trace.Trace.run", "profile.run"),
    *("pdb.Pdb", "bdb.Bdb.run", "code.interact", "codeop.compile_command", "runpy.run_module", "ast.literal_eval"),
    *("ctypes.cdll", "ctypes.string_at", "_ctypes.dlopen", "ctypes.util.find_library", "cffi.FFI.dlopen"),
    *(
        "copyreg.pickle",
        "copyreg.constructor",
        "copy.copy",
        "weakref.finalize",
        "atexit.register",
        "gc.callbacks.append",
    ),
    *(
        "signal.signal",
        "sys.settrace",
        "sys.setprofile",
        "sys.exit",
        "faulthandler.enable",
        "readline.write_history_file",
    ),
    *(
        "shutil.copy",
        "shutil.move",
        "shutil.unpack_archive",
        "tempfile.mkstemp",
        "fileinput.input",
        "linecache.getline",
    ),
    *("glob.glob", "os.path.expandvars", "pathlib.Path.open", "pathlib.PosixPath.write_bytes", "zipimport.zipimporter"),
    *("gzip.open", "bz2.open", "lzma.open", "tarfile.TarFile.extractall", "mmap.mmap", "logging.FileHandler"),
    *("logging.handlers.SocketHandler", "smtplib.SMTP", "ftplib.FTP", "poplib.POP3", "imaplib.IMAP4_stream"),
    *("xml.sax.parse", "xml.etree.ElementTree.parse", "configparser.ConfigParser.read", "string.Formatter"),
    *("distutils.spawn.spawn", "setuptools.sandbox.run_setup", "pip._internal.cli.main.main", "unittest.main"),
    *("torch.save", "torch.from_file", "torch.hub.load_state_dict_from_url", "torch.utils.model_zoo.load_url"),
    *("torch.storage.UntypedStorage.from_file", "torch.FloatStorage.from_file", "torch.Tensor.map_", "torch.compile"),
    *(
        "torch.utils.collect_env.run",
        "torch.utils._config_module.install_config_module",
        "torch.utils.hooks.RemovableHandle",
    ),
    *("torch._inductor.codecache.compile_file", "torch._inductor.utils.run_and_get_code", "torch._dynamo.optimize"),
    *("torch._inductor.codecache.PyCodeCache.load", "torch._inductor.runtime.compile_tasks._reload_python_module"),
    *("torch.serialization._load", "torch.serialization.add_safe_globals", "torch.serialization._legacy_load"),
    *(
        "torch.fx.graph_module.reduce_graph_module",
        "torch.fx.graph_module._exec_with_source",
        "torch._C._jit_set_profiling_mode",
    ),
    *("torch.testing._internal.common_utils.run_tests", "torch.distributed.run.main", "torch.multiprocessing.spawn"),
    *("torch.distributed.rpc.internal._run_function", "torch.distributed.elastic.multiprocessing.start_processes"),
    *("torch.utils.bottleneck.__main__.run_cprofile_analysis", "torch.onnx.export", "torch.export.load"),
    *("numpy.save", "numpy.memmap", "numpy.lib.npyio.DataSource", "numpy.distutils.exec_command.exec_command"),
    *("numpy.core._internal._reconstruct", "numpy.rec.array", "numpy.vectorize", "numpy.frompyfunc", "numpy.loadtxt"),
)


def text(value: str) -> bytes:
    """A text on the stack."""
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def _split(dotted: str) -> tuple[str, str]:
    module, _, name = dotted.rpartition(".")
    return module, name


def by_global(dotted: str, path: Path) -> bytes:
    module, name = _split(dotted)
    return f"\x80\x02c{module}\n{name}\n".encode("latin-1") + text(str(path)) + b"\x85R."


def by_stack_global(dotted: str, path: Path) -> bytes:
    """Names from a memo, put there in the other order."""
    module, name = _split(dotted)
    names = text(name) + b"\x940" + text(module) + b"\x940" + b"h\x01h\x00\x93"
    return b"\x80\x04" + names + text(str(path)) + b"\x85R."


def by_dotted_attribute(dotted: str, path: Path) -> bytes:
    """The whole after the first part as one name with dots."""
    module, _, name = dotted.partition(".")
    return b"\x80\x04" + text(module) + text(name) + b"\x93" + text(str(path)) + b"\x85R."


def by_instance(dotted: str, path: Path) -> bytes:
    module, name = _split(dotted)
    return b"(" + text(str(path)) + f"i{module}\n{name}\n.".encode()


def by_object(dotted: str, path: Path) -> bytes:
    module, name = _split(dotted)
    return f"(c{module}\n{name}\n".encode() + text(str(path)) + b"o."


def by_new(dotted: str, path: Path) -> bytes:
    module, name = _split(dotted)
    return f"\x80\x02c{module}\n{name}\n".encode("latin-1") + text(str(path)) + b"\x85\x81."


def by_new_with_keywords(dotted: str, path: Path) -> bytes:
    module, name = _split(dotted)
    head = b"\x80\x04" + text(module) + text(name) + b"\x93"
    return head + text(str(path)) + b"\x85}" + text("mode") + text("w") + b"s\x92."


def by_build(dotted: str, path: Path) -> bytes:
    """As the ``__setstate__`` that BUILD calls."""
    module, name = _split(dotted)
    held = b"ctypes\nSimpleNamespace\n)R}" + text("__setstate__") + f"c{module}\n{name}\n".encode() + b"sb"
    return b"\x80\x02" + held + text(str(path)) + b"b."


def by_rebuild(dotted: str, path: Path) -> bytes:
    """As the function that torch's own rebuilding of a tensor class calls."""
    module, name = _split(dotted)
    call = f"(c{module}\n{name}\n".encode() + b"ctorch\nTensor\n" + text(str(path)) + b"\x85}t"
    return b"\x80\x02ctorch._tensor\n_rebuild_from_type_v2\n" + call + b"R."


def by_default(dotted: str, path: Path) -> bytes:
    """As the factory of a dictionary."""
    module, name = _split(dotted)
    return b"\x80\x02ccollections\ndefaultdict\n" + f"c{module}\n{name}\n".encode() + b"\x85R."


def by_persistent_id(dotted: str, path: Path) -> bytes:
    """As the class of a storage."""
    module, name = _split(dotted)
    kind = f"c{module}\n{name}\n".encode()
    return b"\x80\x02(" + text("storage") + kind + text("0") + text("cpu") + b"K\x04tQ."


def by_nested_pickle(dotted: str, path: Path) -> bytes:
    """In the bytes that another pickle loads."""
    inner = by_global(dotted, path)
    return b"\x80\x03c_pickle\nloads\nB" + struct.pack("<I", len(inner)) + inner + b"\x85R."


def by_memo_trick(dotted: str, path: Path) -> bytes:
    """A harmless class in a slot of the memo that the gadget then takes over."""
    module, name = _split(dotted)
    return (
        b"\x80\x02ccollections\nOrderedDict\nq\x000"
        + f"c{module}\n{name}\n".encode()
        + b"q\x000h\x00"
        + text(str(path))
        + b"\x85R."
    )


def behind_another(dotted: str, path: Path) -> bytes:
    """In a second pickle behind a harmless one: of a file without an archive."""
    return pickle.dumps({"epoch": 1}, 2) + by_global(dotted, path)


SPELLINGS: Mapping[str, Callable[[str, Path], bytes]] = {
    made.__name__: made
    for made in (
        *(by_global, by_stack_global, by_dotted_attribute, by_instance, by_object, by_new, by_new_with_keywords),
        *(by_build, by_rebuild, by_default, by_persistent_id, by_nested_pickle, by_memo_trick),
    )
}
