# unit_tests: one process, one class or function each. integration_tests: whole engines, most of
# them with a second process; tests/integration/main.cc runs a child's role when it is asked to.
# tests/support holds what both use.
enable_testing()
find_package(GTest REQUIRED)
include(GoogleTest)

function(stagelink_test_program name folder timeout)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${folder}/*.cc)
  if(NOT sources)
    return()
  endif()
  file(GLOB_RECURSE support CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/support/*.cc)
  add_executable(${name} ${sources} ${support})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE STAGELINK_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE stagelink_cli GTest::gmock)
  if(EXISTS ${PROJECT_SOURCE_DIR}/tests/${folder}/main.cc)
    target_link_libraries(${name} PRIVATE GTest::gtest)
  else()
    target_link_libraries(${name} PRIVATE GTest::gtest_main)
  endif()
  if(TARGET stagelink)
    add_dependencies(${name} stagelink)
    target_compile_definitions(${name} PRIVATE STAGELINK_COMMAND="$<TARGET_FILE:stagelink>")
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT ${timeout} LABELS ${folder})
endfunction()

stagelink_test_program(unit_tests unit 60)
stagelink_test_program(integration_tests integration 120)
