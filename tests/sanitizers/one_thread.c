/* Preloaded into the test programs that ThreadSanitizer leaves out because they have one thread: a second one ends them. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

int pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
	(void)t;
	(void)attr;
	(void)run;
	(void)arg;
	fputs("FATAL: a second thread in a program of ONE_THREAD (tests/run.py)\n", stderr);
	abort();
}
