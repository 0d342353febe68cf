"""What a run leaves on disk: the folder's layout and the tables of its SQLite file. For whoever reads a run.

A run's folder (`RUN_DIR`):

    run.sqlite                 the tables below; the planner is the only writer
    lock                       held (flock) by the planner that is alive; its process id is inside
    down/SERVER                a file by this name marks a server of the local launcher as down
    attempts/JOB.N/            all files of the N-th attempt of a job, from 1 on
        task.json              what is to be run (`protocol.Task`)
        rank-R.log             standard output and error of rank R
        status-R               where rank R may write its progress (PACELINE_STATUS)
        remaining_s            expected remaining seconds; written anew at every plan
        claim.json, exit.json  the supervisor's: who runs this attempt, how it ended

All times are seconds since 1970 (`REAL`); `meta.began` is the time of the run's start, and a job arrives at
`began + arrival_s`. JSON is in columns of that name's comment. Nothing is ever deleted.
"""

VERSION = 1

JOB_STATES = ("pending", "waiting", "starting", "running", "done", "failed", "stopped")
"""pending: not yet arrived. waiting: arrived, has no slots. starting: given to the launcher. stopped: by us."""

ATTEMPT_STATES = ("intent", "prepared", "released", "ended")
"""intent: written before the launcher is asked. prepared: the launcher knows it, not a line of it runs.
released: it may run. ended: `outcome` says how."""

OUTCOMES = ("done", "failed", "lost", "stopped")
"""lost: a server or the launcher took it away, so it is placed anew; the job itself did not fail."""

EVENT_KINDS = (
    "run", "arrival", "plan", "start", "running", "end", "lost", "retry", "stop",
    "server", "switch", "path", "launcher", "resume",
)  # fmt: skip

TABLES = """
CREATE TABLE IF NOT EXISTS meta (
    key TEXT PRIMARY KEY,      -- version, run_id, began, ended, launcher, policy, objective, state, switch, options
    value TEXT NOT NULL        -- JSON
);
CREATE TABLE IF NOT EXISTS servers (
    name TEXT PRIMARY KEY,
    position INTEGER NOT NULL, -- in the cluster's order; GPUs (slots) are numbered server after server
    slots INTEGER NOT NULL,
    rack TEXT NOT NULL,
    state TEXT NOT NULL,       -- up or down
    reason TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS jobs (
    name TEXT PRIMARY KEY,
    position INTEGER NOT NULL, -- in the job file's order
    gpus INTEGER NOT NULL,
    iterations REAL NOT NULL,
    arrival_s REAL NOT NULL,   -- after the run's start
    priority REAL NOT NULL,
    exchange TEXT NOT NULL,    -- ring or in-network
    spec TEXT NOT NULL,        -- JSON: the whole job as the file has it
    state TEXT NOT NULL,       -- JOB_STATES
    attempt INTEGER NOT NULL,  -- the last attempt; 0: none yet
    reason TEXT NOT NULL,      -- why it is in this state, or on these servers
    started REAL,              -- of the first attempt that ran
    ended REAL,
    exit_code INTEGER,
    iteration REAL,            -- of the last progress
    rate REAL,                 -- iterations a second, of the last progress
    path TEXT,                 -- switch, custodian or ring, of the last progress
    progress TEXT,             -- JSON: the whole last progress line
    expected_end REAL          -- by the last plan
);
CREATE TABLE IF NOT EXISTS attempts (
    job TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    token TEXT NOT NULL UNIQUE,-- in the job's environment as PACELINE_ATTEMPT; names it in Slurm and Ray
    state TEXT NOT NULL,       -- ATTEMPT_STATES
    task TEXT NOT NULL,        -- JSON: protocol.Task
    handle TEXT,               -- JSON: what the launcher knows it by
    intended REAL NOT NULL,
    released REAL,
    ended REAL,
    outcome TEXT,              -- OUTCOMES
    exit_code INTEGER,
    reason TEXT NOT NULL,
    PRIMARY KEY (job, attempt)
);
CREATE TABLE IF NOT EXISTS placements (
    job TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    server TEXT NOT NULL,
    slots INTEGER NOT NULL,    -- how many of the server's
    gpus TEXT NOT NULL,        -- JSON: which of the cluster's
    start REAL NOT NULL,
    "end" REAL,                -- NULL: still held
    reason TEXT NOT NULL,      -- the policy's
    PRIMARY KEY (job, attempt, server)
);
CREATE TABLE IF NOT EXISTS plans (
    id INTEGER PRIMARY KEY,
    time REAL NOT NULL,
    policy TEXT NOT NULL,
    trigger TEXT NOT NULL,     -- what made it necessary
    running TEXT NOT NULL,     -- JSON: {job: iterations left} pinned to their slots
    decisions TEXT NOT NULL,   -- JSON: [{job, servers, start_s, end_s, reason, now}], seconds after `time`
    settings TEXT NOT NULL,    -- JSON: the policy's
    took_s REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY,
    time REAL NOT NULL,
    kind TEXT NOT NULL,        -- EVENT_KINDS
    job TEXT,                  -- NULL: of the whole run
    text TEXT NOT NULL,        -- one line for people
    reason TEXT NOT NULL,
    figures TEXT NOT NULL      -- JSON: the numbers that it was based on
);
CREATE TABLE IF NOT EXISTS samples (
    time REAL NOT NULL,
    job TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    iteration REAL,
    rate REAL,
    path TEXT,
    figures TEXT NOT NULL      -- JSON: the other keys of the progress line (loss, straggler, ...)
);
CREATE INDEX IF NOT EXISTS samples_by_job ON samples (job, time);
CREATE TABLE IF NOT EXISTS switch_samples (
    time REAL NOT NULL,
    job TEXT,                  -- as the switch names it; NULL: of the whole switch
    slots_in_use REAL,
    preemptions REAL,
    figures TEXT NOT NULL      -- JSON: every other figure of /metrics for this job
);
"""
