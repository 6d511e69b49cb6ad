# Flags that every file of the project is compiled with, as the target stagelink_options.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_SCAN_FOR_MODULES OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(STAGELINK_CCACHE ccache)
  if(STAGELINK_CCACHE)
    # Without the folder in the hash, build folders share what they have compiled.
    set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${STAGELINK_CCACHE})
  endif()
endif()

add_library(stagelink_options INTERFACE)
target_include_directories(stagelink_options INTERFACE
  ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(stagelink_options INTERFACE Threads::Threads)
# Designated initialisers leave the other fields to their defaults on purpose.
# GCC 12 warns of reads and writes in the standard library that it only imagines after inlining:
# those four warnings are off, the address sanitizer looks at the same accesses as they happen.
# -Wsign-conversion belongs to -Wconversion for clang but not for GCC; both check the same set.
target_compile_options(stagelink_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Woverloaded-virtual
  -Wimplicit-fallthrough -Wcast-align -Wformat=2 -Wno-missing-field-initializers
  -fno-omit-frame-pointer
  $<$<AND:$<BOOL:${STAGELINK_PCH}>,$<CXX_COMPILER_ID:Clang>>:SHELL:-Xclang -fno-pch-timestamp>
  $<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread
    -Wno-restrict>
  $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety -Wthread-safety-beta -Wno-sign-conversion>
  $<$<BOOL:${STAGELINK_WERROR}>:-Werror>)
target_compile_definitions(stagelink_options INTERFACE $<$<CONFIG:Debug>:_GLIBCXX_ASSERTIONS>)

if(STAGELINK_SANITIZE)
  target_compile_options(stagelink_options INTERFACE
    -fsanitize=${STAGELINK_SANITIZE} -fno-sanitize-recover=all)
  target_link_options(stagelink_options INTERFACE -fsanitize=${STAGELINK_SANITIZE})
endif()

if(STAGELINK_TIDY)
  find_program(STAGELINK_CLANG_TIDY clang-tidy REQUIRED)
  set(CMAKE_CXX_CLANG_TIDY ${STAGELINK_CLANG_TIDY} --quiet)
endif()
