"""The simulator's driver of `core/help`: what a job's coordinator sees, and what it tells the workers.

coordinator      one a job: events in, the parts below in their order
watch            one job as its coordinator sees it: progress for detection, deaths, the log of decisions
micro_batching   which iterations are cut
claims           who gets which micro-batch
passes           what a worker does after each pass
packets          what packets tell: epochs of roles, bits in the masks of racks, shares
recovery         deaths
leave_out        for comparison: sums without the slowest, inexact
"""
