// NVRTC without a GPU: a kernel's text becomes a shared library for driver.cpp. CUATTN_EMULATED_COMPILER names the program that does it:
// `xtask`, as `xtask emulated-module TEXT LIBRARY`, which prints what a compiler has to say.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#define API extern "C" __attribute__((visibility("default")))

enum Result { SUCCESS = 0, COMPILATION = 6, INTERNAL_ERROR = 11 };

struct Program {
  std::string text, log, image;
};

API int nvrtcVersion(int* major, int* minor) { *major = 13, *minor = 0; return SUCCESS; }
API const char* nvrtcGetErrorString(int result) { return result == SUCCESS ? "NVRTC_SUCCESS" : result == COMPILATION ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR_INTERNAL_ERROR"; }
API int nvrtcCreateProgram(Program** program, const char* text, const char* name, int, const char* const*, const char* const*) {
  *program = new Program{"#line 1 \"" + std::string(name) + "\"\n" + text, "", ""};
  return SUCCESS;
}
API int nvrtcDestroyProgram(Program** program) { delete *program; *program = nullptr; return SUCCESS; }
API int nvrtcCompileProgram(Program* program, int options, const char* const* option) {
  // Of options only definitions concern a C++ compiler.
  for (int i = options - 1; i >= 0; --i) {
    if (std::strncmp(option[i], "-D", 2) != 0) continue;
    std::string definition = option[i] + 2;
    const size_t equal = definition.find('=');
    if (equal != std::string::npos) definition[equal] = ' ';
    program->text.insert(0, "#define " + definition + "\n");
  }
  const char* compiler = std::getenv("CUATTN_EMULATED_COMPILER");
  if (compiler == nullptr) {
    program->log = "CUATTN_EMULATED_COMPILER is not set";
    return INTERNAL_ERROR;
  }
  char folder[] = "/tmp/emulated-XXXXXX";
  if (mkdtemp(folder) == nullptr) return INTERNAL_ERROR;
  const std::string text = std::string(folder) + "/module.cu", library = std::string(folder) + "/module.so";
  std::ofstream(text) << program->text;
  FILE* const output = popen(("'" + std::string(compiler) + "' emulated-module " + text + " " + library + " 2>&1").c_str(), "r");
  if (output == nullptr) return INTERNAL_ERROR;
  char piece[4096];
  while (const size_t bytes = std::fread(piece, 1, sizeof piece, output)) program->log.append(piece, bytes);
  const int status = pclose(output);
  std::ifstream made(library, std::ios::binary);
  program->image.assign(std::istreambuf_iterator<char>(made), {});
  std::remove(text.c_str());
  std::remove(library.c_str());
  rmdir(folder);
  return status == 0 && !program->image.empty() ? SUCCESS : COMPILATION;
}
API int nvrtcGetProgramLogSize(const Program* program, size_t* bytes) { *bytes = program->log.size() + 1; return SUCCESS; }
API int nvrtcGetProgramLog(const Program* program, char* log) { std::memcpy(log, program->log.c_str(), program->log.size() + 1); return SUCCESS; }
API int nvrtcGetCUBINSize(const Program* program, size_t* bytes) { *bytes = program->image.size(); return SUCCESS; }
API int nvrtcGetCUBIN(const Program* program, char* image) { std::memcpy(image, program->image.data(), program->image.size()); return SUCCESS; }
