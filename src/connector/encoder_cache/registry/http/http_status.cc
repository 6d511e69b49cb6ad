#include "connector/encoder_cache/registry/http/http_status.h"

namespace stagelink::encoder_cache {

std::string_view status_phrase(int status) noexcept {
  switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 409: return "Conflict";
    case 413: return "Payload Too Large";
    case 417: return "Expectation Failed";
    case 431: return "Request Header Fields Too Large";
    case 503: return "Service Unavailable";
    case 507: return "Insufficient Storage";
    default: return "Status";
  }
}

std::string_view refusal_text(int status) noexcept {
  switch (status) {
    case 413: return "{\"detail\":\"the body is too large\"}";
    case 417: return "{\"detail\":\"of expectations only 100-continue is known\"}";
    case 431: return "{\"detail\":\"the head is too large\"}";
    default: return "{\"detail\":\"this is no HTTP/1.1 request\"}";
  }
}

}  // namespace stagelink::encoder_cache
