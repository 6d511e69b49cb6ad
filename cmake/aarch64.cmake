# Toolchain of `make aarch64`: compiles the library's layers for 64-bit Arm on an x86-64 host. A
# check that the code compiles; the result is not run.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
