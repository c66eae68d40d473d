// Writes a made-up day of a large cluster as blocks of Prometheus' own database: every series that the dashboards read, once a
// minute, what the rules record included. Nothing in it was measured; only its size matters.
//
//	queries DIR        200 nodes of 8 GPUs (NODES sets another number), the 24 hours before the END of tests/dashboards/data.mjs
package main

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"strconv"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
)

const (
	end    = 1768478400 // 2026-01-15T12:00:00Z
	hours  = 24
	step   = 60
	block  = 2 * 3600
	gpus   = 8
	gib    = 1 << 30
	device = 141.0 * gib
)

// One series: its value at a moment, in seconds before the end; NaN where it has none.
type series struct {
	labels labels.Labels
	value  func(before int) float64
}

var all []series

func add(value func(before int) float64, name string, sets ...map[string]string) {
	builder := labels.NewBuilder(labels.FromStrings("__name__", name))
	for _, set := range sets {
		for label, value := range set {
			builder.Set(label, value)
		}
	}
	all = append(all, series{builder.Labels(), value})
}

func constant(value float64) func(int) float64 { return func(int) float64 { return value } }

// Bytes in use of a container: most are flat, some wave, one in ten grows.
func used(container int) func(int) float64 {
	base := (30 + float64(container*37%60)) * gib
	switch {
	case container%10 == 0:
		return func(before int) float64 { return base + 50*gib*(1-float64(before)/(hours*3600)) }
	case container%3 == 0:
		return func(before int) float64 { return base + 4*gib*math.Sin(float64(before)/900) }
	}
	return constant(base)
}

func pair(label, value string) map[string]string { return map[string]string{label: value} }

func node(n, first int) (containers int) {
	name := fmt.Sprintf("gpu-%03d", n)
	target := map[string]string{
		"namespace": "gpumem-system", "pod": "gpumem-agent-" + name, "container": "agent", "endpoint": "metrics",
		"job": "gpumem-system/gpumem-agent", "instance": fmt.Sprintf("10.0.%d.%d:9400", n/250, n%250),
	}
	own := pair("node", name)
	add(constant(1), "up", target)
	add(constant(120), "scrape_samples_post_metric_relabeling", target)
	add(constant(1), "gpumem_agent_nvml_up", target, own, pair("reason", ""))
	add(constant(0), "gpumem_simulated", target, own)
	add(constant(1), "gpumem_agent_build_info", target, own, pair("version", "0.1.0"))
	add(constant(1), "gpumem_agent_pod_watch_up", target, own)
	add(func(before int) float64 { return 0.5 + float64(before%7)/10 }, "gpumem_agent_sample_age_seconds", target, own)
	for i, le := range []string{"0.001", "0.0025", "0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1", "2.5", "10", "+Inf"} {
		share := math.Min(1, 0.2*float64(i))
		add(func(before int) float64 { return math.Floor(share * float64(hours*3600-before)) }, "gpumem_agent_sample_duration_seconds_bucket", target, own, pair("le", le))
	}
	count := func(before int) float64 { return math.Floor(float64(hours*3600-before) / 900) }
	add(count, "gpumem_agent_query_failures_total", target, own, map[string]string{"query": "running_processes", "kind": "timeout"})
	add(count, "gpumem_agent_proc_failures_total", target, own, map[string]string{"file": "cgroup", "reason": "gone"})
	add(count, "gpumem_agent_dropped_inputs_total", target, own, map[string]string{"input": "processes", "reason": "reserved_pid"})
	add(constant(0.6), "node:gpumem_device_memory_used_per_total:ratio", own)
	for g := range gpus {
		where := map[string]string{"node": name, "gpu": strconv.Itoa(g), "uuid": fmt.Sprintf("GPU-%04x%04x-9d0b-4f7a-8e21-5b6c7d8e9f00", n, g)}
		here := []int{first + containers}
		if g%4 == 0 {
			here = append(here, first+containers+1)
		}
		containers += len(here)
		add(constant(device), "gpumem_device_memory_total_bytes", target, where)
		sum := func(before int) (bytes float64) {
			for _, container := range here {
				bytes += used(container)(before) / float64(len(here))
			}
			return bytes
		}
		add(sum, "gpumem_device_memory_used_bytes", target, where)
		add(func(before int) float64 { return device - sum(before) }, "gpumem_device_memory_free_bytes", target, where)
		add(constant(gib/2), "gpumem_device_memory_reserved_bytes", target, where)
		add(constant(gib/2), "gpumem_device_memory_unattributed_bytes", target, where)
		add(constant(1), "gpumem_device_info", target, where, map[string]string{"model": "NVIDIA H200", "driver": "580.95.05"})
		add(constant(1), "gpumem_device_up", target, where)
		add(constant(1), "gpumem_device_attribution_complete", target, where)
		for _, number := range here {
			container(number, target, where)
		}
	}
	return containers
}

func workload(number int) map[string]string {
	namespace := fmt.Sprintf("team-%02d", number/4%20)
	if number/4%20 == 0 {
		namespace = "ml-train"
	}
	return map[string]string{"namespace": namespace, "workload_kind": "Job", "workload": fmt.Sprintf("train-%d", number/4)}
}

func container(number int, target, where map[string]string) {
	of := workload(number)
	pod := map[string]string{"namespace": of["namespace"], "pod": fmt.Sprintf("%s-%d-x7k2p", of["workload"], number%4), "container": "main"}
	leader := controller(0)
	bytes := used(number)
	add(bytes, "gpumem_container_memory_used_bytes", target, where, pod)
	add(bytes, "gpumem_container_memory_peak_bytes", target, where, pod)
	add(bytes, "gpumem_container_allocator_reserved_bytes", target, where, pod)
	add(func(before int) float64 { return 0.9 * bytes(before) }, "gpumem_container_allocator_allocated_bytes", target, where, pod)
	add(constant(1), "gpumem_workload_info", leader, pod, map[string]string{"node": where["node"], "owner_kind": "Job", "owner_name": of["workload"]})
	add(constant(1), "namespace_pod:gpumem_workload_info:max", of, pair("pod", pod["pod"]))
	recorded := []map[string]string{of, where, pod}
	add(bytes, "container:gpumem_memory_used_bytes:max", recorded...)
	add(constant(device), "container:gpumem_memory_ceiling_bytes:min", recorded...)
	grows := number%10 == 0
	level := 0.0
	if grows {
		level = float64(number / 10 % 4)
		growth := constant(50 * gib / (hours * 3600))
		add(growth, "gpumem_container_memory_growth_bytes_per_second", leader, where, pod)
		add(growth, "container:gpumem_memory_growth_bytes_per_second:max", recorded...)
		for i, quantile := range []string{"0.1", "0.5", "0.9"} {
			left := func(before int) float64 { return 0.5 * float64(i+1) * (3600 + float64(before)) }
			add(left, "gpumem_container_time_to_oom_seconds", leader, where, pod, pair("quantile", quantile))
			add(left, "container:gpumem_time_to_oom_seconds:min", append(recorded, pair("quantile", quantile))...)
		}
	}
	for _, horizon := range []string{"300", "900", "3600"} {
		add(constant(level/4), "gpumem_container_oom_probability_ratio", leader, where, pod, pair("horizon", horizon))
		add(constant(level/4), "container:gpumem_oom_probability_ratio:max", append(recorded, pair("horizon", horizon))...)
	}
	add(constant(level), "gpumem_container_risk_level", leader, where, pod)
	if number%50 == 0 {
		add(constant(1), "gpumem_container_oom_events_total", leader, pod)
	}
	add(constant(level), "container:gpumem_risk_level:max", recorded...)
	if number%4 == 0 {
		add(constant(level), "workload:gpumem_risk_level:max", of)
		add(bytes, "workload:gpumem_memory_used_bytes:sum", of)
		add(bytes, "workload:gpumem_memory_peak_bytes:max1d", of)
		add(constant(4*device), "workload:gpumem_memory_set_aside_bytes:sum", of)
		add(constant(1.1*80*gib), "gpumem_workload_memory_recommended_bytes", leader, of, pair("container", "main"))
		add(func(before int) float64 { return float64(before / 900 % 2) }, "workload:gpumem_oom_events:increase15m", of)
		if grows {
			for i, quantile := range []string{"0.1", "0.5", "0.9"} {
				add(func(before int) float64 { return float64(i+1) * (1800 + float64(before)/2) }, "workload:gpumem_time_to_oom_seconds:min", of, pair("quantile", quantile))
			}
		}
	}
}

func controller(replica int) map[string]string {
	return map[string]string{
		"namespace": "gpumem-system", "pod": fmt.Sprintf("gpumem-controller-%d", replica), "container": "controller", "endpoint": "metrics",
		"job": "gpumem-system/gpumem-controller", "instance": fmt.Sprintf("10.1.0.%d:9401", replica+1),
	}
}

func controllers(nodes int) {
	for replica := range 2 {
		own := controller(replica)
		count := func(each int) func(int) float64 {
			return func(before int) float64 { return math.Floor(float64(hours*3600-before) / float64(each)) }
		}
		add(constant(1), "up", own)
		add(constant(20000), "scrape_samples_post_metric_relabeling", own)
		add(constant(float64(1-replica)), "gpumem_controller_leader", own)
		add(constant(1), "gpumem_build_info", own, pair("version", "0.1.0"))
		add(constant(float64(nodes)), "gpumem_controller_agents", own)
		add(constant(4), "gpumem_controller_oldest_report_seconds", own)
		add(constant(end+61*86400), "gpumem_controller_certificate_expiry_timestamp_seconds", own)
		add(count(7000), "gpumem_controller_errors_total", own, map[string]string{"part": "leader", "kind": "timeout"})
		add(count(9000), "gpumem_controller_dropped_total", own, pair("kind", "future"))
		add(count(1), "gpumem_controller_pulls_total", own, pair("outcome", "ok"))
		add(count(500), "gpumem_controller_pulls_total", own, pair("outcome", "deadline"))
		for _, what := range []string{"nodes", "devices", "series", "pods", "conflicts"} {
			add(constant(float64(nodes)), "gpumem_controller_held", own, pair("what", what))
		}
		for i, le := range []string{"0.001", "0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1", "2", "10", "+Inf"} {
			add(count(12-i), "gpumem_controller_pull_seconds_bucket", own, pair("le", le))
		}
		for _, outcome := range []string{"Hit", "FalseAlarm", "Missed", "Avoided"} {
			add(count(3000), "gpumem_predictions_total", own, pair("outcome", outcome))
		}
		for i, le := range []string{"60", "300", "600", "1200", "1800", "3600", "+Inf"} {
			add(count(21000/(i+1)), "gpumem_prediction_lead_seconds_bucket", own, pair("le", le))
		}
		for _, reason := range []string{"Cooldown", "SamplesStale", "ModeObserve"} {
			add(count(2000), "gpumem_decisions_blocked_total", own, pair("reason", reason))
		}
	}
	for team := range 20 {
		policy := map[string]string{"namespace": workload(4 * team)["namespace"], "policy": "training"}
		for _, outcome := range []string{"Succeeded", "BlockedByBudget"} {
			add(func(before int) float64 { return float64(hours - before/3600) }, "gpumem_policy_actions_total", controller(0), policy, map[string]string{"action": "Evict", "outcome": outcome, "mode": "Enforce"})
		}
		for condition, reason := range map[string]string{"Ready": "Accepted", "TargetsResolved": "Resolved", "DataFresh": "Fresh", "AtRisk": "NoRisk", "ActionAllowed": "Allowed", "ActionsEffective": "Acted"} {
			add(constant(1), "gpumem_policy_condition", controller(0), policy, map[string]string{"condition": condition, "reason": reason})
		}
	}
	add(constant(40*gib), "cluster:gpumem_device_memory_idle_bytes:sum")
	add(constant(float64(nodes)*gpus*device), "cluster:gpumem_device_memory_total_bytes:sum")
}

func write(dir string, from, to int64) error {
	ctx := context.Background()
	writer, err := tsdb.NewBlockWriter(slog.New(slog.DiscardHandler), dir, 2*block*1000)
	if err != nil {
		return err
	}
	defer writer.Close()
	known := make([]storage.SeriesRef, len(all))
	for at := from; at < to; at += step {
		appender := writer.Appender(ctx)
		for i, one := range all {
			value := one.value(int(end - at))
			if math.IsNaN(value) {
				continue
			}
			if known[i], err = appender.Append(known[i], one.labels, at*1000, value); err != nil {
				return err
			}
		}
		if err := appender.Commit(); err != nil {
			return err
		}
	}
	_, err = writer.Flush(ctx)
	return err
}

func main() {
	nodes, containers := 200, 0
	if text := os.Getenv("NODES"); text != "" {
		nodes, _ = strconv.Atoi(text)
	}
	for n := range nodes {
		containers += node(n, containers)
	}
	controllers(nodes)
	for from := int64(end - hours*3600); from < end+step; from += block {
		if err := write(os.Args[1], from, min(from+block, end+step)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	fmt.Printf("%d nodes, %d containers, %d series, %d hours\n", nodes, containers, len(all), hours)
}
