#pragma once

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stagelink/object_store.h"
#include "store/yuanrong/servers/local_cluster.h"

namespace stagelink::test {

// The folder of the real client library: STAGELINK_YUANRONG_SDK, or in the virtual environment of
// the tree. Empty: it is not installed.
std::string real_sdk();
// Why the tests of real servers cannot run here; empty if they can.
std::string servers_missing(bool etcd);

// Real servers of a test, on ports that were free; stopped with it.
class Cluster {
 public:
  using Options = store::yuanrong::LocalClusterOptions;
  // Null after a failed assertion.
  static std::unique_ptr<Cluster> start(Options options);
  ~Cluster();

  const Options& options() const noexcept { return options_; }
  StoreOptions store_options() const;
  std::unique_ptr<ObjectStore> open() const;  // Null after a failed assertion.
  void kill(const std::string& name);         // SIGKILL.
  void restart_worker();                      // Of the same folder, after its death.

 private:
  Options options_;
  std::vector<store::yuanrong::ServerProcess> servers_;
};

// The number behind the sample's name and labels in the store's metrics; -1: there is none.
double metric(const ObjectStore& store, const std::string& name, const std::string& label);

std::string pattern(size_t bytes, unsigned seed);
bool put_text(ObjectStore& store, const std::string& key, const std::string& value);

}  // namespace stagelink::test
