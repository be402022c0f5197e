// A libcuda.so.1 for machines without a card: what PyCUDA and tinyml call of the driver.
//
// "Device" memory is host memory that ends at a forbidden page. A module is a shared object made
// by tinyml.runtime.emu.compile, whose bytes are passed where a cubin would be. Streams are lazy:
// work is done when somebody waits for it and not before, so that whoever forgets to wait, or
// reuses page-locked memory too early, gets wrong results. A kernel that fails breaks the context
// for good, and the next wait says so, as on a card; so does one that was launched before another
// stream has copied what it takes, whichever of both runs first here. In a child by fork every call
// fails, as of NVIDIA's driver, and says so on stderr: tinyml makes none there.
#include <cuda.h>
#include <dlfcn.h>
#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "emu_scheduler.h"  // emu::Launch

#define API extern "C" __attribute__((visibility("default")))

namespace {

constexpr size_t TOTAL_MEMORY = 256 << 20;
constexpr int MOST_SHARED = 227 << 10, SHARED_BY_DEFAULT = 48 << 10;

using Launcher = const char *(*)(emu::Launch *);

struct Function {
  Launcher launcher;
  int shared_limit = SHARED_BY_DEFAULT;
};

struct Event {
  double milliseconds = 0;  // when it was last passed
  int pending = 0;          // how often it stands in a stream
};

// One piece of work on a stream, or one node of a graph.
struct Task {
  enum Kind { LAUNCH, COPY, RECORD } kind;
  Function *function = nullptr;
  unsigned grid[3] = {}, block[3] = {}, shared = 0;
  std::vector<char> arguments;  // of a launch: packed
  bool early = false;           // a launch that waits for nobody who copies what it takes
  void *target = nullptr;       // of a copy
  const void *source = nullptr;
  std::shared_ptr<std::vector<char>> snapshot;  // the source, where it may change before the copy
  size_t nbytes = 0;
  Event *event = nullptr;
};

using Tasks = std::deque<Task>;  // a deque, because nodes are known by their addresses

struct Stream {
  Tasks pending;
  std::unique_ptr<Tasks> capture;    // what a graph under construction has so far
  CUgraphNode newest_node = nullptr;
};

struct GraphInstance {
  Tasks tasks;
  std::map<CUgraphNode, Task *> task_of;
};

struct Allocation {
  char *base;
  size_t mapped, nbytes;
};

thread_local std::vector<CUcontext> context_stack;
CUresult fault = CUDA_SUCCESS;  // once a kernel failed, everything fails
std::map<CUdeviceptr, Allocation> device_memory;
std::map<char *, size_t> page_locked;
std::map<void *, unsigned> page_locked_flags;
std::map<Stream *, std::unique_ptr<Stream>> streams;
Stream default_stream;
size_t used_memory;

pid_t owner;  // the process that initialized the driver

CUresult here() {
  if (!owner || owner == getpid()) return CUDA_SUCCESS;
  fputs("fakecuda: called in a child of the process that initialized it\n", stderr);
  return CUDA_ERROR_NOT_INITIALIZED;
}

CUresult ready() {
  if (CUresult error = here()) return error;
  return context_stack.empty() ? CUDA_ERROR_INVALID_CONTEXT : fault;
}

Stream *as_stream(CUstream stream) {
  return stream ? reinterpret_cast<Stream *>(stream) : &default_stream;
}

double now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1e3 + time.tv_nsec * 1e-6;
}

// ------------------------------------------------------------------ doing the work

CUresult kind_of_fault(const std::string &message) {
  if (message.find("illegal memory access") != std::string::npos) return CUDA_ERROR_ILLEGAL_ADDRESS;
  if (message.find("misaligned") != std::string::npos) return CUDA_ERROR_MISALIGNED_ADDRESS;
  return CUDA_ERROR_LAUNCH_FAILED;
}

void launch(const Task &task) {
  if (task.early) {
    fputs("fakecuda: a kernel does not wait for what another stream copies\n", stderr);
    fault = CUDA_ERROR_LAUNCH_FAILED;
    return;
  }
  emu::Launch launch = {};
  memcpy(launch.grid, task.grid, sizeof launch.grid);
  memcpy(launch.block, task.block, sizeof launch.block);
  launch.shared = task.shared;
  launch.arguments = task.arguments.data();
  const char *message = task.function->launcher(&launch);
  if (message) fault = kind_of_fault(message);
}

void perform(const Task &task) {
  switch (task.kind) {
    case Task::LAUNCH:
      launch(task);
      break;
    case Task::COPY:
      memmove(task.target, task.snapshot ? task.snapshot->data() : task.source, task.nbytes);
      break;
    case Task::RECORD:
      task.event->milliseconds = now();
      task.event->pending--;
      break;
  }
}

CUresult finish(Stream *stream, const Event *until = nullptr) {
  while (!stream->pending.empty() && !(until && !until->pending) && !fault) {
    Task task = std::move(stream->pending.front());
    stream->pending.pop_front();
    perform(task);
  }
  return fault;
}

// What waits for the whole device, and what the default stream waits for.
CUresult finish_all() {
  for (auto &entry : streams) {
    if (entry.first->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    finish(entry.first);
  }
  return finish(&default_stream);
}

// Whether another stream is yet to copy to where an argument of a launch points. The default stream
// is in order with all others.
bool comes_early(const Task &launch, const Stream *own) {
  for (size_t place = 0; place + 8 <= launch.arguments.size(); place += 8) {
    char *address;
    memcpy(&address, &launch.arguments[place], 8);
    for (auto &entry : streams) {
      for (const Task &task : entry.first->pending) {
        char *start = static_cast<char *>(task.target);
        bool within = task.kind == Task::COPY && start <= address && address < start + task.nbytes;
        if (within && entry.first != own) return true;
      }
    }
  }
  return false;
}

CUresult enqueue(CUstream handle, Task task) {
  if (CUresult error = ready()) return error;
  Stream *stream = as_stream(handle);
  if (stream->capture) {
    if (task.kind == Task::RECORD) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    stream->capture->push_back(std::move(task));
    stream->newest_node = reinterpret_cast<CUgraphNode>(&stream->capture->back());
    return CUDA_SUCCESS;
  }
  if (task.kind == Task::RECORD) task.event->pending++;
  if (task.kind == Task::LAUNCH) task.early = comes_early(task, stream);
  stream->pending.push_back(std::move(task));
  return CUDA_SUCCESS;
}

bool is_page_locked(const void *memory) {
  char *address = static_cast<char *>(const_cast<void *>(memory));
  auto next = page_locked.upper_bound(address);
  if (next == page_locked.begin()) return false;
  auto [start, size] = *std::prev(next);
  return address < start + size;
}

Task copy_task(void *target, const void *source, size_t nbytes) {
  Task task;
  task.kind = Task::COPY;
  task.target = target;
  task.source = source;
  task.nbytes = nbytes;
  return task;
}

CUresult copy_now(void *target, const void *source, size_t nbytes) {
  if (CUresult error = ready()) return error;
  if (CUresult error = finish_all()) return error;
  memmove(target, source, nbytes);
  return CUDA_SUCCESS;
}

}  // namespace

// ------------------------------------------------------------------ errors, devices, contexts

API CUresult cuGetErrorString(CUresult error, const char **text) {
  static const std::map<int, const char *> texts = {
      {CUDA_ERROR_INVALID_VALUE, "invalid argument"},
      {CUDA_ERROR_OUT_OF_MEMORY, "out of memory"},
      {CUDA_ERROR_NOT_INITIALIZED, "initialization error"},
      {CUDA_ERROR_INVALID_CONTEXT, "invalid device context"},
      {CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"},
      {CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"},
      {CUDA_ERROR_NOT_FOUND, "named symbol not found"},
      {CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"},
      {CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"},
      {CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"},
      {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"},
  };
  auto found = texts.find(error);
  *text = found == texts.end() ? "an error that fakecuda has no words for" : found->second;
  return CUDA_SUCCESS;
}

API CUresult cuInit(unsigned) {
  if (CUresult error = here()) return error;
  owner = getpid();
  return getenv("FAKECUDA_NO_DEVICE") ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

API CUresult cuDriverGetVersion(int *version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

API CUresult cuDeviceGet(CUdevice *device, int number) {
  *device = number;
  return number ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

API CUresult cuDeviceGetCount(int *count) {
  *count = 1;
  return CUDA_SUCCESS;
}

API CUresult cuDeviceGetName(char *name, int size, CUdevice) {
  snprintf(name, size, "fakecuda");
  return CUDA_SUCCESS;
}

API CUresult cuDeviceTotalMem(size_t *nbytes, CUdevice) {
  *nbytes = TOTAL_MEMORY;
  return CUDA_SUCCESS;
}

API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice) {
  *major = 9;
  *minor = 0;
  return CUDA_SUCCESS;
}

API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice) {
  static const std::map<int, int> values = {
      {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
      {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
      {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 4},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, SHARED_BY_DEFAULT},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, MOST_SHARED},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
  };
  auto found = values.find(attribute);
  *value = found == values.end() ? 0 : found->second;
  return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice) {
  if (CUresult error = here()) return error;
  *context = reinterpret_cast<CUcontext>(0x100);
  return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxRelease(CUdevice) { return here(); }

API CUresult cuCtxPushCurrent(CUcontext context) {
  if (CUresult error = here()) return error;
  context_stack.push_back(context);
  return CUDA_SUCCESS;
}

API CUresult cuCtxPopCurrent(CUcontext *context) {
  if (CUresult error = here()) return error;
  if (context_stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context) *context = context_stack.back();
  context_stack.pop_back();
  return CUDA_SUCCESS;
}

API CUresult cuCtxGetDevice(CUdevice *device) {
  *device = 0;
  return context_stack.empty() ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

API CUresult cuCtxGetApiVersion(CUcontext, unsigned *version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

API CUresult cuCtxSynchronize() {
  if (CUresult error = ready()) return error;
  return finish_all();
}

// ------------------------------------------------------------------ memory

API CUresult cuMemAlloc(CUdeviceptr *address, size_t nbytes) {
  if (CUresult error = ready()) return error;
  if (!nbytes) return CUDA_ERROR_INVALID_VALUE;
  if (used_memory + nbytes > TOTAL_MEMORY) return CUDA_ERROR_OUT_OF_MEMORY;
  size_t page = sysconf(_SC_PAGESIZE), whole = (nbytes + page - 1) / page * page;
  size_t mapped = whole + page;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
  void *memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  char *base = static_cast<char *>(memory);
  mprotect(base + whole, page, PROT_NONE);
  memset(base, 0xff, whole);  // NaN for whoever reads what nobody wrote
  *address = reinterpret_cast<CUdeviceptr>(base + whole - (nbytes + 15) / 16 * 16);
  device_memory[*address] = {base, mapped, nbytes};
  used_memory += nbytes;
  return CUDA_SUCCESS;
}

API CUresult cuMemFree(CUdeviceptr address) {
  if (CUresult error = ready()) return error;
  auto found = device_memory.find(address);
  if (found == device_memory.end()) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = finish_all()) return error;
  used_memory -= found->second.nbytes;
  munmap(found->second.base, found->second.mapped);
  device_memory.erase(found);
  return CUDA_SUCCESS;
}

API CUresult cuMemGetInfo(size_t *free, size_t *total) {
  if (CUresult error = ready()) return error;
  *free = TOTAL_MEMORY - used_memory;
  *total = TOTAL_MEMORY;
  return CUDA_SUCCESS;
}

API CUresult cuMemHostAlloc(void **memory, size_t nbytes, unsigned flags) {
  if (CUresult error = ready()) return error;
  if (posix_memalign(memory, 4096, nbytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  memset(*memory, 0xff, nbytes);
  page_locked_flags[*memory] = flags;
  page_locked[static_cast<char *>(*memory)] = nbytes;
  return CUDA_SUCCESS;
}

// Only what was allocated to be mapped has an address on the card.
API CUresult cuMemHostGetDevicePointer(CUdeviceptr *address, void *memory, unsigned) {
  if (CUresult error = ready()) return error;
  if (!(page_locked_flags[memory] & CU_MEMHOSTALLOC_DEVICEMAP)) return CUDA_ERROR_INVALID_VALUE;
  *address = reinterpret_cast<CUdeviceptr>(memory);
  return CUDA_SUCCESS;
}

API CUresult cuMemFreeHost(void *memory) {
  if (CUresult error = here()) return error;
  if (!page_locked.erase(static_cast<char *>(memory))) return CUDA_ERROR_INVALID_VALUE;
  finish_all();
  free(memory);
  return CUDA_SUCCESS;
}

API CUresult cuMemcpyHtoD(CUdeviceptr target, const void *source, size_t nbytes) {
  return copy_now(reinterpret_cast<void *>(target), source, nbytes);
}

API CUresult cuMemcpyDtoH(void *target, CUdeviceptr source, size_t nbytes) {
  return copy_now(target, reinterpret_cast<void *>(source), nbytes);
}

// What the emulator takes for a tensor map; a card refuses what this refuses.
API CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
                                    void *address, const cuuint64_t *sizes,
                                    const cuuint64_t *strides, const cuuint32_t *box,
                                    const cuuint32_t *steps, CUtensorMapInterleave,
                                    CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                                    CUtensorMapFloatOOBfill) {
  cuuint64_t itemsize = type == CU_TENSOR_MAP_DATA_TYPE_UINT16 ? 2 : 4;
  bool right = itemsize == 2 || type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32;
  right = right && rank == 3 && box[0] * itemsize == 128 && box[2] == 1;
  right = right && swizzle == CU_TENSOR_MAP_SWIZZLE_128B && box[1] >= 1 && box[1] <= 256;
  for (int i = 0; i < 3; i++) right = right && steps[i] == 1 && sizes[i] >= 1;
  for (int i = 0; i < 2; i++) right = right && strides[i] % 16 == 0 && strides[i];
  if (!right || (uintptr_t)address % 16 || (uintptr_t)map % 64) return CUDA_ERROR_INVALID_VALUE;
  emu::BoxMap made = {emu::BOX_MAP, (uintptr_t)address, {sizes[0], sizes[1], sizes[2]},
                      {strides[0], strides[1]}, {box[0], box[1]}, itemsize};
  memset(map, 0, sizeof *map);
  memcpy(map, &made, sizeof made);
  return CUDA_SUCCESS;
}

API CUresult cuMemcpyHtoDAsync(CUdeviceptr target, const void *source, size_t nbytes,
                               CUstream stream) {
  Task task = copy_task(reinterpret_cast<void *>(target), source, nbytes);
  if (!is_page_locked(source)) {
    const char *bytes = static_cast<const char *>(source);
    task.snapshot = std::make_shared<std::vector<char>>(bytes, bytes + nbytes);
  }
  return enqueue(stream, task);
}

API CUresult cuMemsetD8Async(CUdeviceptr target, unsigned char byte, size_t nbytes,
                             CUstream stream) {
  Task task = copy_task(reinterpret_cast<void *>(target), nullptr, nbytes);
  task.snapshot = std::make_shared<std::vector<char>>(nbytes, byte);
  return enqueue(stream, task);
}

API CUresult cuMemcpyDtoHAsync(void *target, CUdeviceptr source, size_t nbytes, CUstream stream) {
  CUresult error = enqueue(stream, copy_task(target, reinterpret_cast<void *>(source), nbytes));
  if (error || is_page_locked(target)) return error;
  return finish(as_stream(stream));
}

API CUresult cuMemcpyDtoDAsync(CUdeviceptr target, CUdeviceptr source, size_t nbytes,
                               CUstream stream) {
  void *from = reinterpret_cast<void *>(source);
  return enqueue(stream, copy_task(reinterpret_cast<void *>(target), from, nbytes));
}

// ------------------------------------------------------------------ streams and events

API CUresult cuStreamCreate(CUstream *stream, unsigned) {
  if (CUresult error = ready()) return error;
  auto created = std::make_unique<Stream>();
  *stream = reinterpret_cast<CUstream>(created.get());
  streams[created.get()] = std::move(created);
  return CUDA_SUCCESS;
}

API CUresult cuStreamDestroy(CUstream stream) {
  if (CUresult error = here()) return error;
  finish(as_stream(stream));
  streams.erase(as_stream(stream));
  return CUDA_SUCCESS;
}

API CUresult cuStreamSynchronize(CUstream stream) {
  if (CUresult error = ready()) return error;
  if (as_stream(stream)->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  return finish(as_stream(stream));
}

API CUresult cuEventCreate(CUevent *event, unsigned) {
  if (CUresult error = ready()) return error;
  *event = reinterpret_cast<CUevent>(new Event);
  return CUDA_SUCCESS;
}

API CUresult cuEventDestroy(CUevent event) {
  if (CUresult error = here()) return error;
  finish_all();  // or a stream would write to an event that is gone
  delete reinterpret_cast<Event *>(event);
  return CUDA_SUCCESS;
}

API CUresult cuEventRecord(CUevent event, CUstream stream) {
  Task task;
  task.kind = Task::RECORD;
  task.event = reinterpret_cast<Event *>(event);
  return enqueue(stream, task);
}

API CUresult cuEventSynchronize(CUevent event) {
  if (CUresult error = ready()) return error;
  const Event *wanted = reinterpret_cast<Event *>(event);
  for (auto &entry : streams) {
    for (const Task &task : entry.first->pending) {
      if (task.event == wanted) return finish(entry.first, wanted);
    }
  }
  return fault;
}

API CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
  const Event *first = reinterpret_cast<Event *>(start), *last = reinterpret_cast<Event *>(end);
  if (first->pending || last->pending) return CUDA_ERROR_NOT_READY;
  *milliseconds = last->milliseconds - first->milliseconds;
  return CUDA_SUCCESS;
}

// ------------------------------------------------------------------ modules and launches

API CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned, CUjit_option *,
                                void **) {
  if (CUresult error = ready()) return error;
  const Elf64_Ehdr *header = static_cast<const Elf64_Ehdr *>(image);
  if (memcmp(image, ELFMAG, SELFMAG) || header->e_type != ET_DYN) return CUDA_ERROR_INVALID_IMAGE;
  // A caller passes no length; the table of sections is the last thing in the file.
  size_t nbytes = header->e_shoff + size_t(header->e_shnum) * header->e_shentsize;
  char path[] = "/tmp/fakecuda-XXXXXX";  // a new name each time: dlopen goes by names
  int file = mkstemp(path);
  bool written = write(file, image, nbytes) == ssize_t(nbytes);
  void *library = written ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  close(file);
  unlink(path);
  *module = reinterpret_cast<CUmodule>(library);
  return library ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}

API CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  return cuModuleLoadDataEx(module, image, 0, nullptr, nullptr);
}

API CUresult cuModuleUnload(CUmodule module) {
  if (CUresult error = here()) return error;
  finish_all();
  dlclose(module);
  return CUDA_SUCCESS;
}

API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  if (CUresult error = ready()) return error;
  void *launcher = dlsym(module, name);
  if (!launcher) return CUDA_ERROR_NOT_FOUND;
  Function *found = new Function;
  found->launcher = reinterpret_cast<Launcher>(launcher);
  *function = reinterpret_cast<CUfunction>(found);
  return CUDA_SUCCESS;
}

API CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_SUCCESS;
  if (value > MOST_SHARED) return CUDA_ERROR_INVALID_VALUE;
  reinterpret_cast<Function *>(function)->shared_limit = value;
  return CUDA_SUCCESS;
}

API CUresult cuFuncGetAttribute(int *value, CUfunction_attribute, CUfunction) {
  *value = 0;
  return CUDA_SUCCESS;
}

// PyCUDA calls it when a launch is prepared, for drivers that are long gone.
API CUresult cuFuncSetBlockShape(CUfunction, int, int, int) { return CUDA_SUCCESS; }

API CUresult cuLaunchKernel(CUfunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                            CUstream stream, void **parameters, void **extra) {
  Function *function = reinterpret_cast<Function *>(handle);
  uint64_t threads = uint64_t(block_x) * block_y * block_z;
  bool bad_grid = !grid_x || !grid_y || !grid_z || grid_y > 65535 || grid_z > 65535;
  if (bad_grid || !threads || threads > 1024 || int(shared) > function->shared_limit) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (parameters || !extra) return CUDA_ERROR_NOT_SUPPORTED;
  Task task{Task::LAUNCH, function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared};
  const char *packed = nullptr;
  size_t nbytes = 0;
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) packed = static_cast<const char *>(extra[1]);
    if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) nbytes = *static_cast<size_t *>(extra[1]);
  }
  task.arguments.assign(packed, packed + nbytes);
  return enqueue(stream, task);
}

// ------------------------------------------------------------------ graphs

API CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode) {
  if (!stream || as_stream(stream)->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  as_stream(stream)->capture = std::make_unique<Tasks>();
  return ready();
}

API CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
  *graph = reinterpret_cast<CUgraph>(as_stream(stream)->capture.release());
  return *graph ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
}

static CUresult capture_info(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *number,
                             CUgraph *graph, const CUgraphNode **dependencies, size_t *count) {
  Stream *stream = as_stream(handle);
  *status = stream->capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  if (number) *number = 1;
  if (graph) *graph = reinterpret_cast<CUgraph>(stream->capture.get());
  if (dependencies) *dependencies = &stream->newest_node;
  if (count) *count = stream->capture && !stream->capture->empty();
  return CUDA_SUCCESS;
}

#if CUDA_VERSION >= 13000
API CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status,
                                    cuuint64_t *number, CUgraph *graph,
                                    const CUgraphNode **dependencies, const CUgraphEdgeData **,
                                    size_t *count) {
  return capture_info(stream, status, number, graph, dependencies, count);
}
#else
API CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status,
                                    cuuint64_t *number, CUgraph *graph,
                                    const CUgraphNode **dependencies, size_t *count) {
  return capture_info(stream, status, number, graph, dependencies, count);
}
#endif

API CUresult cuGraphInstantiateWithFlags(CUgraphExec *handle, CUgraph graph, unsigned long long) {
  GraphInstance *instance = new GraphInstance;
  for (Task &task : *reinterpret_cast<Tasks *>(graph)) {
    instance->tasks.push_back(task);
    instance->task_of[reinterpret_cast<CUgraphNode>(&task)] = &instance->tasks.back();
  }
  *handle = reinterpret_cast<CUgraphExec>(instance);
  return CUDA_SUCCESS;
}

API CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *parameters) {
  const Task *task = reinterpret_cast<Task *>(node);
  *parameters = {};
  parameters->func = reinterpret_cast<CUfunction>(task->function);
  parameters->gridDimX = task->grid[0], parameters->blockDimX = task->block[0];
  parameters->gridDimY = task->grid[1], parameters->blockDimY = task->block[1];
  parameters->gridDimZ = task->grid[2], parameters->blockDimZ = task->block[2];
  parameters->sharedMemBytes = task->shared;
  return CUDA_SUCCESS;
}

API CUresult cuGraphExecKernelNodeSetParams(CUgraphExec handle, CUgraphNode node,
                                            const CUDA_KERNEL_NODE_PARAMS *parameters) {
  GraphInstance *instance = reinterpret_cast<GraphInstance *>(handle);
  auto found = instance->task_of.find(node);
  if (found == instance->task_of.end() || !parameters->kernelParams || parameters->extra) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Task &task = *found->second;
  bool same = reinterpret_cast<Function *>(parameters->func) == task.function &&
              parameters->gridDimX == task.grid[0] && parameters->blockDimX == task.block[0] &&
              parameters->sharedMemBytes == task.shared;
  if (!same) return CUDA_ERROR_INVALID_VALUE;  // a driver allows it; tinyml never wants it
  for (size_t i = 0; i < task.arguments.size() / 8; i++) {  // every argument is a pointer
    memcpy(&task.arguments[8 * i], parameters->kernelParams[i], 8);
  }
  return CUDA_SUCCESS;
}

API CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream) {
  for (const Task &task : reinterpret_cast<GraphInstance *>(handle)->tasks) {
    if (CUresult error = enqueue(stream, task)) return error;
  }
  return CUDA_SUCCESS;
}

API CUresult cuGraphExecDestroy(CUgraphExec handle) {
  if (CUresult error = here()) return error;
  delete reinterpret_cast<GraphInstance *>(handle);
  return CUDA_SUCCESS;
}

API CUresult cuGraphDestroy(CUgraph graph) {
  if (CUresult error = here()) return error;
  delete reinterpret_cast<Tasks *>(graph);
  return CUDA_SUCCESS;
}
