"""The signatures of csrc/csb.h as one table; tests compare it with the header and the library."""

from __future__ import annotations

import enum
from ctypes import CFUNCTYPE, c_char_p, c_double, c_int32, c_int64, c_void_p
from typing import Any

import numpy as np

ABI_VERSION = 1


class Status(enum.IntEnum):
    OK = 0
    NO_SLOT = 1
    CANCELLED = 2
    ERROR_BATCH = -1
    ERROR_ALLOCATION = -2
    ERROR_COMPUTE = -3
    ERROR_ARGUMENT = -10
    ERROR_FILE = -11
    ERROR_UNSUPPORTED = -12
    ERROR_MEMORY = -13
    ERROR_INTERNAL = -14
    ERROR_DEVICE = -15


class Row(enum.IntEnum):
    """Columns of csb_rows_summarise."""

    N_BAD = 0
    ARGMAX = 1
    MAX = 2
    SECOND = 3
    SECOND_L = 4
    LOGSUMEXP = 5
    TARGET_L = 6
    RANK = 7
    N_FIELDS = 8


class Pair(enum.IntEnum):
    """Columns of csb_rows_compare."""

    N_DIFF = 0
    MAX_ABS = 1
    RMS = 2
    KL = 3
    TV = 4
    LSE_A = 5
    LSE_B = 6
    N_FIELDS = 7


class KernelSwitch(enum.IntFlag):
    """CPU kernels that can be refused at run time: csb_kernel_switch."""

    WITHOUT_LLAMAFILE = 1
    WITHOUT_TILED = 2
    WITHOUT_SPLIT_KV = 4
    REFERENCE = 8


def _array(dtype: Any) -> Any:
    return np.ctypeslib.ndpointer(dtype=dtype, flags="C_CONTIGUOUS")


# What a C parameter is called here. OUT is a pointer to one value, passed with byref.
HANDLE = c_void_p
TEXT = c_char_p
OUT = c_void_p
OPTIONS = (c_int32, c_void_p, c_void_p)
WATCHER = CFUNCTYPE(None, c_void_p, c_void_p, c_int32)
TEXTS = c_void_p  # an array of texts
POINTERS = c_void_p
I64 = _array(np.int64)
I32 = _array(np.int32)
I8 = _array(np.int8)
U8 = _array(np.uint8)
F32 = _array(np.float32)
F64 = _array(np.float64)

# name: (result, arguments). Results of "status" functions are checked in library.py.
STATUS = c_int32
SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "csb_abi_version": (c_int32, ()),
    "csb_error_message": (c_char_p, ()),
    "csb_library_build": (STATUS, (OUT,)),
    "csb_library_system": (STATUS, (OUT,)),
    "csb_library_add_rpc": (STATUS, (TEXT, c_int32)),
    "csb_library_set_log_level": (STATUS, (c_int32,)),
    "csb_net_arm": (STATUS, (TEXT, TEXT, TEXT)),
    "csb_net_append": (STATUS, (TEXT,)),
    "csb_net_disarm": (STATUS, ()),
    "csb_net_leave": (STATUS, (c_int32, TEXT)),
    "csb_net_test": (STATUS, (TEXT, TEXT)),
    "csb_model_open": (STATUS, (TEXT, *OPTIONS, OUT)),
    "csb_model_close": (None, (HANDLE,)),
    "csb_model_describe": (STATUS, (HANDLE, OUT)),
    "csb_model_metadata": (STATUS, (HANDLE, TEXT, OUT)),
    "csb_model_chat_template": (STATUS, (HANDLE, OUT)),
    "csb_model_tokenize": (STATUS, (HANDLE, TEXT, c_int32, c_int32, c_int32, c_int32, OUT, OUT)),
    "csb_model_detokenize": (STATUS, (HANDLE, I32, c_int32, c_int32, c_int32, OUT, OUT)),
    "csb_model_token_piece": (STATUS, (HANDLE, c_int32, c_int32, OUT, OUT)),
    "csb_model_token_is_eog": (STATUS, (HANDLE, c_int32, OUT)),
    "csb_quantize": (STATUS, (TEXT, TEXT, TEXT, c_int32, c_int32)),
    "csb_quantize_rows": (STATUS, (TEXT, c_int64, c_int64, F32, c_int64, OUT, OUT)),
    "csb_op_run": (
        STATUS,
        (
            *(TEXT, TEXT, c_int32, c_int32, c_int32, I32),
            *(TEXT, I64),
            *(c_int32, TEXTS, I64, I64, POINTERS, I64, I8),
            *(c_int64, U8, OUT),
        ),
    ),
    "csb_context_open": (STATUS, (HANDLE, *OPTIONS, OUT)),
    "csb_context_close": (None, (HANDLE,)),
    "csb_context_describe": (STATUS, (HANDLE, OUT)),
    "csb_context_offload": (STATUS, (HANDLE, OUT)),
    "csb_context_decode": (STATUS, (HANDLE, c_int32, I32, I32, I32, I8)),
    "csb_context_steps": (STATUS, (HANDLE, c_int32, I32, c_int32, c_int32, F32)),
    "csb_context_cancel": (STATUS, (HANDLE,)),
    "csb_context_logits": (STATUS, (HANDLE, c_int32, I32, F32)),
    "csb_context_decode_time": (STATUS, (HANDLE, OUT, OUT)),
    "csb_context_seq_rm": (STATUS, (HANDLE, c_int32, c_int32, c_int32, OUT)),
    "csb_context_seq_bounds": (STATUS, (HANDLE, c_int32, OUT, OUT)),
    "csb_context_clear": (STATUS, (HANDLE, c_int32)),
    "csb_context_state_size": (STATUS, (HANDLE, c_int32, c_int32, OUT)),
    "csb_context_state_get": (STATUS, (HANDLE, c_int32, c_int32, c_int64, U8, OUT)),
    "csb_context_state_set": (STATUS, (HANDLE, c_int32, c_int32, U8, c_int64)),
    "csb_context_tap": (STATUS, (HANDLE, c_int32, I32)),
    "csb_context_tapped": (STATUS, (HANDLE, c_int64, F32, OUT, OUT)),
    "csb_draft_describe": (STATUS, (HANDLE, OUT)),
    "csb_draft_open": (STATUS, (HANDLE, HANDLE, *OPTIONS, OUT)),
    "csb_draft_inject": (STATUS, (HANDLE, c_int32, c_int32, F32, c_int32)),
    "csb_context_trace": (STATUS, (HANDLE, c_int32, c_int32, c_int64)),
    "csb_context_trace_take": (STATUS, (HANDLE, OUT, OUT)),
    "csb_context_watch": (STATUS, (HANDLE, WATCHER, c_void_p)),
    "csb_node_describe": (STATUS, (HANDLE, OUT)),
    "csb_node_read": (STATUS, (HANDLE, c_int32, c_int32, c_int64, c_int64, c_int64, U8)),
    "csb_node_write": (STATUS, (HANDLE, c_int32, c_int32, c_int64, c_int64, c_int64, U8)),
    "csb_node_rerun": (STATUS, (HANDLE, c_int64, U8)),
    "csb_kernels_set": (STATUS, (c_int32,)),
    "csb_kernels_get": (STATUS, (OUT,)),
    "csb_rows_summarise": (STATUS, (c_int32, c_int32, F32, I32, c_double, F64)),
    "csb_rows_compare": (STATUS, (c_int32, c_int32, F32, F32, c_double, F64)),
}
