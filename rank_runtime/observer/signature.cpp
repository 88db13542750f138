// Op signatures. The text is made once per combination of op and inputs; later calls find it by its fingerprint.

#include "signature.h"

#include <c10/core/ScalarType.h>

#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>

#include "../shim/device/device.h"

namespace maya {
namespace {

struct FingerprintHash {
  size_t operator()(const Fingerprint& print) const { return print.first; }
};

struct Known {
  std::mutex lock;
  std::unordered_map<Fingerprint, uint32_t, FingerprintHash> numbers;
};

Known& known() {
  static Known& signatures = *new Known;  // never destroyed, as in optimizers.cpp
  return signatures;
}

const char* dtype_name(c10::ScalarType dtype) {
  // torch's names, as in torch.float32
  switch (dtype) {
    case c10::ScalarType::Float: return "float32";
    case c10::ScalarType::Double: return "float64";
    case c10::ScalarType::Half: return "float16";
    case c10::ScalarType::BFloat16: return "bfloat16";
    case c10::ScalarType::Byte: return "uint8";
    case c10::ScalarType::Char: return "int8";
    case c10::ScalarType::Short: return "int16";
    case c10::ScalarType::Int: return "int32";
    case c10::ScalarType::Long: return "int64";
    case c10::ScalarType::Bool: return "bool";
    case c10::ScalarType::ComplexFloat: return "complex64";
    case c10::ScalarType::ComplexDouble: return "complex128";
    case c10::ScalarType::Float8_e4m3fn: return "float8_e4m3fn";
    case c10::ScalarType::Float8_e5m2: return "float8_e5m2";
    default: return c10::toString(dtype);
  }
}

void append(std::string& text, const int64_t* numbers, size_t count) {
  text += '[';
  for (size_t i = 0; i < count; i++) {
    if (i) text += ',';
    text += std::to_string(numbers[i]);
  }
  text += ']';
}

void append_quoted(std::string& text, std::string_view words) {
  text += '"';
  for (char c : words) {
    if (c == '"' || c == '\\') text += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) text += c;
  }
  text += '"';
}

void append(std::string& text, const TensorView& view) {
  text += "{\"shape\":";
  append(text, view.sizes.data(), view.sizes.size());
  text += ",\"dtype\":\"";
  text += dtype_name(view.dtype);
  text += '"';
  if (view.strided) {
    text += ",\"strides\":";
    append(text, view.strides.data(), view.strides.size());
  } else {
    text += ",\"layout\":\"not strided\"";
  }
  if (!view.on_gpu()) text += ",\"device\":\"cpu\"";
  text += '}';
}

void append(std::string& text, const Argument& argument) {
  switch (argument.kind) {
    case Argument::Kind::kNone: text += "null"; break;
    case Argument::Kind::kTensor: append(text, argument.tensors[0]); break;
    case Argument::Kind::kTensorList:
      text += '[';
      for (size_t i = 0; i < argument.tensors.size(); i++) {
        if (i) text += ',';
        append(text, argument.tensors[i]);
      }
      text += ']';
      break;
    case Argument::Kind::kInteger: text += std::to_string(argument.integer); break;
    case Argument::Kind::kBool: text += argument.integer ? "true" : "false"; break;
    case Argument::Kind::kIntegerList: append(text, argument.integers.data(), argument.integers.size()); break;
    case Argument::Kind::kString: append_quoted(text, argument.text); break;
    case Argument::Kind::kFloat:
      text += "\"float\"";
      break;  // without the value, because a learning rate would change every step's signature
    case Argument::Kind::kOther: text += "\"other\""; break;
  }
}

}  // namespace

uint32_t find_signature(const Fingerprint& print) {
  std::lock_guard<std::mutex> guard(known().lock);
  auto found = known().numbers.find(print);
  return found != known().numbers.end() ? found->second : 0;
}

uint32_t make_signature(const Fingerprint& print, const char* name, const std::vector<Argument>& arguments, size_t count) {
  std::string text = "{\"op\":";
  append_quoted(text, name);
  text += ",\"inputs\":[";
  for (size_t i = 0; i < count; i++) {
    if (i) text += ',';
    append(text, arguments[i]);
  }
  text += "]}";
  const uint32_t number = maya_intern(text.data(), text.size());
  std::lock_guard<std::mutex> guard(known().lock);
  known().numbers.emplace(print, number);
  return number;
}

uint32_t name_signature(const char* name) {
  std::string text = "{\"op\":";
  append_quoted(text, name);
  text += '}';
  return maya_intern(text.data(), text.size());
}

}  // namespace maya
