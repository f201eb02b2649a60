"""The plugin library from Python: built once per content, checked before use, and its maths on the host.

Owns finding the compilers, the cache of builds and the preflight of foreign libraries. The C++ is in
``plugins/`` of the checkout (``andrea_export/_plugin_sources`` of a wheel) and is never written to; TensorRT
is never imported here. ``doctor`` imports `toolchain` where numpy is not installed.
"""
