/*
 * Lets a user-mode kernel run on processors whose register state is larger
 * than it knows.
 *
 * It saves and restores the extended registers of its processes by ptrace,
 * with a buffer for the state up to the protection keys. On a processor with
 * more (the tiles of AMX) the host refuses to restore a state that is not
 * whole. This library, preloaded, makes the buffer whole: what lies beyond is
 * in its initial state, for no guest may use it without asking first.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define WHOLE 65536
#define LEGACY 512
/* Components that fit into the caller's buffer: x87 to protection keys. */
#define KNOWN 0x2ffUL

static char whole[WHOLE] __attribute__((aligned(64)));
static size_t whole_size;

static long call(int request, pid_t pid, void *address, void *data)
{
	return syscall(SYS_ptrace, request, pid, address, data);
}

static long get(pid_t pid, struct iovec *caller)
{
	struct iovec all = { whole, WHOLE };
	long result = call(PTRACE_GETREGSET, pid, (void *)NT_X86_XSTATE, &all);

	if (result < 0)
		return result;
	whole_size = all.iov_len;
	if (caller->iov_len > whole_size)
		caller->iov_len = whole_size;
	memcpy(caller->iov_base, whole, caller->iov_len);
	return 0;
}

static long set(pid_t pid, struct iovec *caller)
{
	struct iovec all = { whole, whole_size };
	unsigned long components;

	if (caller->iov_len >= whole_size)
		return call(PTRACE_SETREGSET, pid, (void *)NT_X86_XSTATE, caller);
	memset(whole, 0, whole_size);
	memcpy(whole, caller->iov_base, caller->iov_len);
	memcpy(&components, whole + LEGACY, sizeof(components));
	components &= KNOWN;
	memcpy(whole + LEGACY, &components, sizeof(components));
	return call(PTRACE_SETREGSET, pid, (void *)NT_X86_XSTATE, &all);
}

long ptrace(enum __ptrace_request request, ...)
{
	va_list arguments;
	va_start(arguments, request);
	pid_t pid = va_arg(arguments, pid_t);
	void *address = va_arg(arguments, void *);
	void *data = va_arg(arguments, void *);
	va_end(arguments);

	if (address == (void *)NT_X86_XSTATE && request == PTRACE_GETREGSET)
		return get(pid, data);
	if (address == (void *)NT_X86_XSTATE && request == PTRACE_SETREGSET)
		return set(pid, data);
	/* Peeking has a convention of its own: the word is the result. */
	if (request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA || request == PTRACE_PEEKUSER) {
		long word = 0;
		errno = 0;
		return call(request, pid, address, &word) < 0 ? -1 : word;
	}
	return call(request, pid, address, data);
}
