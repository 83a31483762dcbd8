/* Between device.cc and stream.cc. Everything here is called with emu_lock held. */
#ifndef FH_EMU_STREAM_H
#define FH_EMU_STREAM_H

#include "emu.h"
#include <mutex>

extern std::recursive_mutex emu_lock;
/* At the beginning of every function of the API: the lock, and what FH_EMU_FAULT has in store for it. */
#define EMU_CALL()                                                                                                      \
	std::lock_guard<std::recursive_mutex> hold(emu_lock);                                                           \
	if (const cudaError_t fault_ = emu_fault(__func__))                                                             \
	return emu_result(fault_)
cudaError_t emu_fault(const char *call);

cudaError_t emu_result(cudaError_t e); /* what the call returns: e, or the error after which all fail */
void emu_break(cudaError_t e);
bool emu_broken(void);
bool emu_is_device(const void *p, size_t bytes);
bool emu_is_pinned(const void *p, size_t bytes);
bool emu_capturing(void);              /* this thread captures, or any does in the global mode: calls that wait or allocate are refused */
void emu_driver_takes(size_t bytes);   /* device memory for something of its own */
void emu_driver_gives(size_t bytes);
void emu_complete_all(void);

#endif
