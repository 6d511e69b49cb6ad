# The extension module stagelink._core. nanobind comes from the build environment of `pip install`,
# or from the Python that CMake finds: pip install nanobind.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
if(NOT nanobind_ROOT)
  execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir
    OUTPUT_VARIABLE nanobind_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
find_package(nanobind 3 CONFIG REQUIRED)

file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/bindings/*.cc)
# Plain -O2, not -Os: a call is a microsecond, and the arguments of a batch are read here.
nanobind_add_module(_core NB_STATIC NOMINSIZE NB_SUPPRESS_WARNINGS ${sources})
target_link_libraries(_core PRIVATE stagelink_connector)
# nanobind compiles its own code, which is not held to the project's warnings.
if(TARGET nanobind-static)
  set_target_properties(nanobind-static PROPERTIES CXX_CLANG_TIDY "")
endif()
# The only name the module exports is PyInit__core: other modules of a process may carry the same
# libraries in other versions, and templates of the C++ library are unique across a whole process.
set(exports ${PROJECT_SOURCE_DIR}/src/bindings/exports.map)
target_link_options(_core PRIVATE -Wl,--exclude-libs,ALL -Wl,--version-script=${exports})
set_property(TARGET _core APPEND PROPERTY LINK_DEPENDS ${exports})

if(SKBUILD)
  install(TARGETS _core LIBRARY DESTINATION stagelink)
  # Where the module looks for them.
  install(TARGETS stagelink-yuanrong-broker RUNTIME DESTINATION stagelink)
  install(TARGETS stagelink_yuanrong_sdk LIBRARY DESTINATION stagelink)
  if(TARGET stagelink)
    install(TARGETS stagelink RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR})
  endif()
else()
  # A package that can be imported from the build folder: PYTHONPATH=build/<preset>/python.
  set_target_properties(_core PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/python/stagelink)
  set(package ${PROJECT_SOURCE_DIR}/python)
  file(GLOB_RECURSE files CONFIGURE_DEPENDS RELATIVE ${package}
    ${package}/stagelink/*.py ${package}/stagelink/*.pyi ${package}/stagelink/*.typed)
  foreach(file IN LISTS files)
    get_filename_component(folder ${PROJECT_BINARY_DIR}/python/${file} DIRECTORY)
    file(MAKE_DIRECTORY ${folder})
    file(CREATE_LINK ${package}/${file} ${PROJECT_BINARY_DIR}/python/${file} SYMBOLIC)
  endforeach()
endif()
