# unit_tests: one process, one class or function each. integration_tests: whole engines, most of
# them with a second process; tests/integration/main.cc runs a child's role when it is asked to.
# cli_tests: what stands above the engine (folders named cli*), apart because it doubles the build.
enable_testing()
find_package(GTest REQUIRED)
include(GoogleTest)

# stagelink_test_program(<name> FILES <sources> LINK <layer> TIMEOUT <seconds> [MAIN] [SHARDED])
function(stagelink_test_program name)
  cmake_parse_arguments(ARG "MAIN;SHARDED" "LINK;TIMEOUT" "FILES" ${ARGN})
  if(NOT ARG_FILES)
    return()
  endif()
  add_executable(${name} ${ARG_FILES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE STAGELINK_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${ARG_LINK} GTest::gmock)
  if(ARG_MAIN)
    target_link_libraries(${name} PRIVATE GTest::gtest)
  else()
    target_link_libraries(${name} PRIVATE GTest::gtest_main)
  endif()
  # Optimising tests, which run once, and reading the same headers is most of their compile time.
  target_precompile_headers(${name} PRIVATE
    <algorithm> <atomic> <chrono> <functional> <map> <memory> <span> <string> <thread> <vector>
    <fmt/format.h> <gtest/gtest.h>)
  target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O0> $<$<CONFIG:RelWithDebInfo>:-g1>)
  if(STAGELINK_SANITIZE)
    target_compile_options(${name} PRIVATE -O0)
  endif()
  if(ARG_SHARDED AND STAGELINK_TEST_SHARDS)
    stagelink_add_shards(${name})
  else()
    gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
      PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS ${name})
  endif()
endfunction()

# Few processes with many tests each: the start of a process under a sanitizer takes longer than
# most unit tests. Each shard writes what its tests did beside the program.
function(stagelink_add_shards name)
  math(EXPR last "${STAGELINK_TEST_SHARDS} - 1")
  foreach(index RANGE ${last})
    set(shard ${name}.shard_${index})
    add_test(NAME ${shard} COMMAND ${name} --gtest_output=xml:${shard}.xml)
    set_tests_properties(${shard} PROPERTIES TIMEOUT 300 LABELS ${name}
      ENVIRONMENT "GTEST_TOTAL_SHARDS=${STAGELINK_TEST_SHARDS};GTEST_SHARD_INDEX=${index}")
  endforeach()
endfunction()

file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/unit/*.cc)
set(cli_sources ${sources})
list(FILTER sources EXCLUDE REGEX "/tests/unit/cli")
if(STAGELINK_SANITIZE STREQUAL "thread")
  # Where nothing runs beside the test there is nothing to race.
  foreach(source IN LISTS sources)
    file(STRINGS ${source} threads REGEX "std::(j?thread|async)" LIMIT_COUNT 1)
    if(NOT threads AND NOT source MATCHES "/tests/unit/(engine|connector/(zmq|moriio/[a-z]+))/")
      list(REMOVE_ITEM sources ${source})
    endif()
  endforeach()
endif()
if(NOT STAGELINK_UNIT_TESTS)
  # The others run under the sanitizers.
  foreach(source IN LISTS sources)
    file(STRINGS ${source} skips REGEX "if \\(.*kSanitized\\) GTEST_SKIP" LIMIT_COUNT 1)
    if(NOT skips)
      list(REMOVE_ITEM sources ${source})
    endif()
  endforeach()
endif()
list(FILTER cli_sources INCLUDE REGEX "/tests/unit/cli")
stagelink_test_program(unit_tests FILES ${sources} LINK stagelink_connector TIMEOUT 60
  SHARDED)
stagelink_test_program(cli_tests FILES ${cli_sources} LINK stagelink_cli TIMEOUT 120)
if(TARGET cli_tests AND TARGET stagelink)
  add_dependencies(cli_tests stagelink)
  target_compile_definitions(cli_tests PRIVATE STAGELINK_COMMAND="$<TARGET_FILE:stagelink>")
endif()

file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/integration/*.cc)
stagelink_test_program(integration_tests MAIN FILES ${sources} LINK stagelink_connector TIMEOUT 120)
# What the broker loads in these tests.
add_library(fake_datasystem MODULE ${PROJECT_SOURCE_DIR}/tests/fake_datasystem/plugin.cc)
target_link_libraries(fake_datasystem PRIVATE stagelink_options)
add_dependencies(integration_tests stagelink-yuanrong-broker fake_datasystem)
target_compile_definitions(integration_tests PRIVATE
  STAGELINK_FAKE_DATASYSTEM="$<TARGET_FILE:fake_datasystem>")

# Real servers of the Yuanrong Datasystem, once for each file: run as a whole, and only where the
# broker is as plain as the library needs it.
if(NOT STAGELINK_SANITIZE)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/yuanrong/*.cc)
  add_executable(yuanrong_tests ${sources}
    ${PROJECT_SOURCE_DIR}/tests/integration/main.cc
    ${PROJECT_SOURCE_DIR}/tests/integration/support/channel.cc
    ${PROJECT_SOURCE_DIR}/tests/integration/support/child_process.cc)
  target_include_directories(yuanrong_tests PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(yuanrong_tests PRIVATE STAGELINK_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_compile_options(yuanrong_tests PRIVATE $<$<CONFIG:RelWithDebInfo>:-O0 -g1>)
  target_link_libraries(yuanrong_tests PRIVATE stagelink_connector GTest::gtest)
  add_dependencies(yuanrong_tests stagelink-yuanrong-broker stagelink_yuanrong_sdk)
  add_test(NAME yuanrong_tests COMMAND yuanrong_tests)
  set_tests_properties(yuanrong_tests PROPERTIES TIMEOUT 240 LABELS yuanrong_tests)
endif()
