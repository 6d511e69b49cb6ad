# stagelink_layer(<name> [EXCLUDE <files>] [LINK <targets>])
#
# One folder of src/ is one static library, stagelink_<name>, made of every .cc file below it. It
# links the layers declared before it. A folder without sources yet is an interface library.
#
# Its headers, and those of include/stagelink for `base`, must each compile alone: the target
# header_check compiles one file a header (not part of the default build).
set(STAGELINK_LAYERS "" CACHE INTERNAL "Layers declared so far, lowest first")
add_custom_target(header_check)
set(STAGELINK_ALONE
  shared_pages.cc stream/frame_sender.cc stream/stream_serving.cc moriio/io/memory_desc.cc
  moriio/messages/heartbeat.cc moriio/messages/notify_message.cc moriio/messages/packed_map.cc
  moriio/options.cc moriio/writer/write_thread.cc bench/target/target_process.cc
  replay/halves/remote_ranks.cc
  replay/rank/prefill_link.cc replay/rank_config.cc replay/report/statistics.cc replay/run_plan.cc)

function(stagelink_layer name)
  cmake_parse_arguments(ARG "" "" "EXCLUDE;LINK" ${ARGN})
  set(folder ${PROJECT_SOURCE_DIR}/src/${name})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${folder}/*.cc)
  foreach(file IN LISTS ARG_EXCLUDE)
    list(REMOVE_ITEM sources ${folder}/${file})
  endforeach()

  set(target stagelink_${name})
  set(scope PUBLIC)
  if(sources)
    add_library(${target} STATIC ${sources})
    stagelink_precompile(${target})
    stagelink_unite(${target} ${folder})
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_link_libraries(${target} ${scope} stagelink_options ${ARG_LINK})
  foreach(lower IN LISTS STAGELINK_LAYERS)
    target_link_libraries(${target} ${scope} stagelink_${lower})
  endforeach()
  set(STAGELINK_LAYERS ${STAGELINK_LAYERS} ${name} CACHE INTERNAL "")

  file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/src ${folder}/*.h)
  if(name STREQUAL "base")
    file(GLOB_RECURSE public CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/include
      ${PROJECT_SOURCE_DIR}/include/stagelink/*.h)
    list(APPEND headers ${public})
  endif()
  stagelink_header_check(${target} "${headers}")
endfunction()

# Layers are compiled with equal flags and share the first one's precompiled headers. The presets dev
# and release do without, so that a missing #include is found.
function(stagelink_precompile target)
  if(NOT STAGELINK_PCH)
    return()
  endif()
  if(TARGET stagelink_base AND NOT target STREQUAL "stagelink_base")
    target_precompile_headers(${target} REUSE_FROM stagelink_base)
  else()
    target_precompile_headers(${target} PRIVATE
      <algorithm> <array> <atomic> <chrono> <deque> <functional> <map> <memory> <mutex> <optional>
      <span> <string> <string_view> <thread> <vector> <fmt/format.h>)
  endif()
endfunction()

# Compiles several files as one, which saves most of the time that headers take, where nobody works on
# the code: release and sanitizer builds. Names of anonymous namespaces then meet; the files named
# above define what another file of their layer does. The presets dev and tidy compile each file alone,
# so that a missing #include is found.
function(stagelink_unite target folder)
  if(CMAKE_BUILD_TYPE STREQUAL "Debug" AND NOT STAGELINK_SANITIZE)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
  file(GLOB alone ${folder}/copy_x86/*.cc)
  if(target STREQUAL "stagelink_cli")
    # By folder, so that a new file meets only those that stand beside it.
    set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
    get_target_property(sources ${target} SOURCES)
    foreach(source IN LISTS sources)
      cmake_path(GET source PARENT_PATH part)
      cmake_path(RELATIVE_PATH part BASE_DIRECTORY ${folder})
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${part})
    endforeach()
  endif()
  foreach(file IN LISTS STAGELINK_ALONE)
    if(EXISTS ${folder}/${file})
      list(APPEND alone ${folder}/${file})
    endif()
  endforeach()
  set_source_files_properties(${alone} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

function(stagelink_header_check target headers)
  if(NOT headers)
    return()
  endif()
  set(files)
  foreach(header IN LISTS headers)
    string(MAKE_C_IDENTIFIER ${header} stem)
    set(file ${PROJECT_BINARY_DIR}/header_check/${stem}.cc)
    file(CONFIGURE OUTPUT ${file} CONTENT "#include \"${header}\"\n")
    list(APPEND files ${file})
  endforeach()
  add_library(${target}_headers OBJECT EXCLUDE_FROM_ALL ${files})
  target_link_libraries(${target}_headers PRIVATE ${target})
  set_target_properties(${target}_headers PROPERTIES CXX_CLANG_TIDY "")
  add_dependencies(header_check ${target}_headers)
endfunction()
