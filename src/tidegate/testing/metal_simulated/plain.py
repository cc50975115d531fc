"""Selectors and constants that PyObjC's metadata does not list, by hand, each with the page that documents it.

Metadata exists for protocols and for what the Objective-C runtime cannot tell by itself. Plain classes with plain types
(descriptors, NSError, listeners) describe themselves at run time, so no list has them.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["CONSTANTS", "FUNCTIONS", "SELECTORS"]

SELECTORS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "NSObject": {
        "alloc": ("@", "NSObject — alloc"),
        "init": ("@", "NSObject — init()"),
        "new": ("@", "NSObject — new"),
        "release": ("v", "NSObject — release"),
    },
    "NSError": {
        "domain": ("@", "NSError — domain"),
        "code": ("q", "NSError — code"),
        "localizedDescription": ("@", "NSError — localizedDescription"),
        "localizedFailureReason": ("@", "NSError — localizedFailureReason"),
        "userInfo": ("@", "NSError — userInfo"),
    },
    "NSURL": {
        "fileURLWithPath:": ("@@", "NSURL — fileURLWithPath:"),
        "path": ("@", "NSURL — path"),
    },
    "NSData": {
        "dataWithBytes:length:": ("@^Q", "NSData — dataWithBytes:length:"),
        "length": ("Q", "NSData — length"),
    },
    "MTLArchitecture": {"name": ("@", "MTLArchitecture — name")},
    "MTLSharedEventListener": {
        "init": ("@", "MTLSharedEventListener — init()"),
        "initWithDispatchQueue:": ("@@", "MTLSharedEventListener — init(dispatchQueue:)"),
        "dispatchQueue": ("@", "MTLSharedEventListener — dispatchQueue"),
    },
    "MTLSharedEventHandle": {"label": ("@", "MTLSharedEventHandle — label")},
    "MTLCompileOptions": {
        "setPreprocessorMacros:": ("v@", "MTLCompileOptions — preprocessorMacros"),
        "preprocessorMacros": ("@", "MTLCompileOptions — preprocessorMacros"),
        "setLanguageVersion:": ("vQ", "MTLCompileOptions — languageVersion"),
        "languageVersion": ("Q", "MTLCompileOptions — languageVersion"),
        "setMathMode:": ("vq", "MTLCompileOptions — mathMode"),
        "mathMode": ("q", "MTLCompileOptions — mathMode"),
    },
    "MTLCommandBufferDescriptor": {
        "setErrorOptions:": ("vQ", "MTLCommandBufferDescriptor — errorOptions"),
        "errorOptions": ("Q", "MTLCommandBufferDescriptor — errorOptions"),
    },
    "MTLHeapDescriptor": {
        "setSize:": ("vQ", "MTLHeapDescriptor — size"),
        "size": ("Q", "MTLHeapDescriptor — size"),
        "setStorageMode:": ("vQ", "MTLHeapDescriptor — storageMode"),
        "storageMode": ("Q", "MTLHeapDescriptor — storageMode"),
        "setCpuCacheMode:": ("vQ", "MTLHeapDescriptor — cpuCacheMode"),
        "cpuCacheMode": ("Q", "MTLHeapDescriptor — cpuCacheMode"),
        "setHazardTrackingMode:": ("vQ", "MTLHeapDescriptor — hazardTrackingMode"),
        "hazardTrackingMode": ("Q", "MTLHeapDescriptor — hazardTrackingMode"),
        "setResourceOptions:": ("vQ", "MTLHeapDescriptor — resourceOptions"),
        "resourceOptions": ("Q", "MTLHeapDescriptor — resourceOptions"),
        "setType:": ("vq", "MTLHeapDescriptor — type"),
        "type": ("q", "MTLHeapDescriptor — type"),
    },
    "MTLFunctionConstantValues": {
        "setConstantValue:type:atIndex:": ("vPQQ", "MTLFunctionConstantValues — setConstantValue(_:type:index:)"),
        "setConstantValue:type:withName:": ("vPQ@", "MTLFunctionConstantValues — setConstantValue(_:type:withName:)"),
        "reset": ("v", "MTLFunctionConstantValues — reset()"),
    },
    "MTLFunctionConstant": {
        "name": ("@", "MTLFunctionConstant — name"),
        "type": ("Q", "MTLFunctionConstant — type"),
        "index": ("Q", "MTLFunctionConstant — index"),
    },
}
"""By class: the encoding of the result and of the arguments, one letter each.

`^` is a pointer to bytes whose length PyObjC's metadata for Foundation tells; `P` is a pointer of which it knows
nothing, and which it takes as a number, the address.
"""

CONSTANTS: Mapping[str, tuple[int, str]] = {
    "MTLHeapTypeAutomatic": (0, "MTLHeapType"),
    "MTLHeapTypePlacement": (1, "MTLHeapType"),
    "MTLHeapTypeSparse": (2, "MTLHeapType"),
    "MTLHazardTrackingModeDefault": (0, "MTLHazardTrackingMode"),
    "MTLHazardTrackingModeUntracked": (1, "MTLHazardTrackingMode"),
    "MTLHazardTrackingModeTracked": (2, "MTLHazardTrackingMode"),
    "MTLFunctionTypeKernel": (3, "MTLFunctionType"),
    "MTLDataTypeStruct": (1, "MTLDataType"),
    "MTLDataTypeFloat": (3, "MTLDataType"),
    "MTLDataTypeHalf": (16, "MTLDataType"),
    "MTLDataTypeInt": (29, "MTLDataType"),
    "MTLDataTypeUInt": (33, "MTLDataType"),
    "MTLDataTypeShort": (37, "MTLDataType"),
    "MTLDataTypeUShort": (41, "MTLDataType"),
    "MTLDataTypeChar": (45, "MTLDataType"),
    "MTLDataTypeUChar": (49, "MTLDataType"),
    "MTLDataTypeBool": (53, "MTLDataType"),
    "MTLDataTypeLong": (81, "MTLDataType"),
    "MTLDataTypeULong": (85, "MTLDataType"),
    "MTLLibraryErrorUnsupported": (1, "MTLLibraryError"),
    "MTLLibraryErrorInternal": (2, "MTLLibraryError"),
    "MTLLibraryErrorCompileFailure": (3, "MTLLibraryError"),
    "MTLLibraryErrorCompileWarning": (4, "MTLLibraryError"),
    "MTLLibraryErrorFunctionNotFound": (5, "MTLLibraryError"),
    "MTLLibraryErrorFileNotFound": (6, "MTLLibraryError"),
    "MTLCommandBufferErrorDomain": (0, "MTLCommandBufferErrorDomain"),
    "MTLLibraryErrorDomain": (0, "MTLLibraryErrorDomain"),
}
"""Enumerators by name, with the page; the two error domains are strings of the same name."""

FUNCTIONS: Mapping[str, str] = {
    "MTLCreateSystemDefaultDevice": "MTLCreateSystemDefaultDevice()",
    "MTLCopyAllDevices": "MTLCopyAllDevices()",
    "MTLSizeMake": "MTLSizeMake(_:_:_:)",
    "NSMakeRange": "NSMakeRange(_:_:)",
    "dispatch_queue_create": "dispatch_queue_create",
    "dispatch_data_create": "dispatch_data_create",
    "autorelease_pool": "PyObjC — objc.autorelease_pool",
}
"""Functions of the frameworks and of PyObjC, with their pages."""
