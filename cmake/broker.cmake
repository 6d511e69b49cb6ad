# The broker of the Yuanrong backend: an executable, and the plug-in that it loads, which is linked
# against a stand-in for the library of the wheel (docs/decisions/0007-yuanrong-broker.md). Both lie
# beside the command, and in the Python package beside the extension module.
add_executable(stagelink-yuanrong-broker
  ${PROJECT_SOURCE_DIR}/src/broker/main.cc ${PROJECT_SOURCE_DIR}/src/broker/interpose.cc)
target_link_libraries(stagelink-yuanrong-broker PRIVATE stagelink_broker)
# The library must find these of ours; the broker is nobody's plug-in, so it exports nothing else.
target_link_options(stagelink-yuanrong-broker PRIVATE
  -Wl,--export-dynamic-symbol=mmap -Wl,--export-dynamic-symbol=mmap64
  -Wl,--export-dynamic-symbol=munmap -Wl,--export-dynamic-symbol=pthread_mutex_lock)
if(STAGELINK_SANITIZE)
  target_compile_definitions(stagelink-yuanrong-broker PRIVATE STAGELINK_SANITIZED)
endif()

# The library does not bear every sanitizer: what is compiled here is as plain as it is.
function(stagelink_plain_module name)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_compile_options(${name} PRIVATE -Wall -Wextra -Wpedantic -Wshadow
    $<$<BOOL:${STAGELINK_WERROR}>:-Werror>)
endfunction()

add_library(stagelink_datasystem_stub SHARED ${PROJECT_SOURCE_DIR}/src/broker/sdk/stub.cc)
stagelink_plain_module(stagelink_datasystem_stub)
target_compile_options(stagelink_datasystem_stub PRIVATE -Wno-unused-parameter)
set_target_properties(stagelink_datasystem_stub PROPERTIES
  OUTPUT_NAME datasystem LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/datasystem_stub
  CXX_CLANG_TIDY "")

add_library(stagelink_yuanrong_sdk MODULE ${PROJECT_SOURCE_DIR}/src/broker/sdk/plugin.cc)
stagelink_plain_module(stagelink_yuanrong_sdk)
target_link_libraries(stagelink_yuanrong_sdk PRIVATE stagelink_datasystem_stub)
set(plugin_exports ${PROJECT_SOURCE_DIR}/src/broker/sdk/exports.map)
target_link_options(stagelink_yuanrong_sdk PRIVATE -Wl,--version-script=${plugin_exports})
set_property(TARGET stagelink_yuanrong_sdk APPEND PROPERTY LINK_DEPENDS ${plugin_exports})
set_target_properties(stagelink_yuanrong_sdk PROPERTIES
  PREFIX "" OUTPUT_NAME stagelink-yuanrong-sdk SUFFIX .so
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR} SKIP_BUILD_RPATH ON
  CXX_CLANG_TIDY "")
