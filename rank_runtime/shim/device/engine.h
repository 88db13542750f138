/* Declarations shared by stream.c and graph.c: streams, captured work, and the one lock of the engine. */
#pragma once

#include "process.h"
#include "internal.h"

typedef struct queued_command {
    maya_command command;
    uint64_t position;    /* 1, 2, ... in its stream */
    maya_stream *awaited; /* not NULL: wait until `awaited` has completed `awaited_position` */
    uint64_t awaited_position;
    const void *watched; /* not NULL: wait until this memory compares with `value` */
    uint64_t watched_value;
    bool watched_wide;
    unsigned comparison;
    struct queued_command *next;
} queued_command;

typedef struct maya_capture maya_capture;

struct maya_stream {
    uint32_t number;
    int device;
    unsigned flags;
    int priority;
    bool is_legacy;
    bool destroyed;
    uint64_t submitted, completed; /* positions: work is numbered 1, 2, ... */
    uint64_t last_collective;      /* position of the last asynchronous work */
    uint64_t host_waits_for;       /* the lowest position that a host thread waits for; UINT64_MAX: none does */
    bool executing;                /* some thread runs the work at the head, or it was started and is not done yet */
    queued_command *head, *tail;   /* queued commands */
    uint32_t host_functions;       /* how many host functions of the user so far */
    uint32_t awaiting;             /* entries in queues of other streams that wait for this one */
    maya_capture *capture;         /* not NULL: work goes into a graph */
    struct maya_stream *next;      /* all streams of the process; a stream's memory is kept, as events may point to it */
};

struct maya_event {
    uint32_t number;
    unsigned flags;
    bool recorded;
    maya_stream *stream;
    uint64_t position;
    uint64_t host_ns;
    maya_capture *capture;       /* last recorded inside this capture ... */
    uint64_t capture_id;         /* ... if its id is still this one */
    struct shared_event *shared; /* not NULL: exported to or opened from another process */
};

/* The part of an interprocess event that all its processes share. */
typedef struct shared_event {
    _Atomic uint64_t recorded, completed; /* how often */
} shared_event;

maya_stream *maya_stream_resolve(void *handle);
/* Work on `stream`, recorded as if on the stream numbered `record_as`. Takes over the work's argument. */
int maya_submit_to(maya_stream *stream, const maya_command *command, uint32_t record_as);

/* shared_event.c */
void maya_shared_event_record(shared_event *shared, maya_stream *stream);
void maya_shared_event_close(shared_event *shared);

/* Whether streams have incomplete collectives (asynchronous work); wait for all collectives submitted so far. */
bool maya_streams_hold_collectives(void);
void maya_streams_complete_collectives(void);
/* Whether the calling thread is one of the workers. */
bool maya_is_stream_worker(void);

/* Writes the numbers of up to `most` streams that a host thread waits for; returns how many. */
uint32_t maya_streams_awaited(uint32_t *numbers, uint32_t most);
/* The condition that host threads wait on for a stream. */
const pthread_cond_t *maya_streams_condition(void);

/* graph.c; all called with maya_engine_lock held except where said */
bool maya_capture_is_alive(const maya_capture *capture, uint64_t id);
uint64_t maya_capture_id(const maya_capture *capture);
void maya_capture_append(maya_stream *stream, const maya_command *command, uint32_t record_as);
void maya_capture_join(maya_stream *stream, maya_capture *capture);

/* stream.c */
uint32_t maya_new_event_number(void);
/* stream.c, with maya_engine_lock held: no stream is captured by `capture` any more */
void maya_streams_leave_capture(const maya_capture *capture);
