#include "store/backend.h"

namespace stagelink::store {

std::vector<Result<ViewPtr>> Backend::get_many(std::span<const std::string> keys,
                                               const GetTerms& terms) {
  std::vector<Result<ViewPtr>> out;
  out.reserve(keys.size());
  for (const std::string& key : keys) out.push_back(get(key, terms));
  return out;
}

}  // namespace stagelink::store
