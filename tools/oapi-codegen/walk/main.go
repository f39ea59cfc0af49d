// Command walk calls every operation of an agent's API with a client that oapi-codegen has generated
// from the agent's /openapi.json, into the folder client beside it.
//
// Its arguments are the agent's socket, the address of a backend, and an address of a pool. It writes
// the ids of the operations that it has called, one a line. An answer with another status than
// expected, or one that the generated types can't decode, ends it with an error.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/ironvip/ironvip/tools/oapi-codegen/client"
)

func main() {
	if len(os.Args) != 4 {
		fail("usage: walk SOCKET BACKEND VIP")
	}
	socket, backend, vip := os.Args[1], os.Args[2], os.Args[3]
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	c, err := client.NewClientWithResponses("http://localhost", client.WithHTTPClient(&http.Client{Transport: transport, Timeout: time.Minute}))
	if err != nil {
		fail("%v", err)
	}
	ctx := context.Background()
	const ns, web, node = "default", "web", "lb1"
	wait := "wait=30"

	call("healthz", 200)(c.HealthzWithResponse(ctx))
	call("readyz", 200)(c.ReadyzWithResponse(ctx))
	call("metrics", 200)(c.MetricsWithResponse(ctx))
	call("openapi", 200)(c.OpenapiWithResponse(ctx))
	call("get-status", 200)(c.GetStatusWithResponse(ctx))

	spec := read[client.PutServiceJSONRequestBody](`{"labels": {"app": "shop"}, "vips": ["` + vip + `"], "ports": [{"port": 80}, {"port": 443, "node_port": "auto"}],
		"backends": [{"address": "` + backend + `", "port": 9}], "health": {"type": "none"}, "affinity": {"timeout": "1h"}}`)
	call("put-service", 201)(c.PutServiceWithResponse(ctx, ns, web, &client.PutServiceParams{Prefer: &wait}, spec))
	got, err := c.GetServiceWithResponse(ctx, ns, web, nil)
	call("get-service", 200)(got, err)
	if s := got.JSON200; s.Status.Vips == nil || len(*s.Status.Vips) != 1 || (*s.Status.Vips)[0] != vip || (*s.Spec.Labels)["app"] != "shop" || !s.Status.Applied {
		fail("get-service: %s", got.Body)
	}
	known := got.JSON200.Etag
	patch := read[client.PatchServiceApplicationMergePatchPlusJSONRequestBody](`{"labels": {"tier": "front"}}`)
	patched, err := c.PatchServiceWithApplicationMergePatchPlusJSONBodyWithResponse(ctx, ns, web, &client.PatchServiceParams{IfMatch: &known}, patch)
	call("patch-service", 200)(patched, err)
	if labels := *patched.JSON200.Spec.Labels; labels["app"] != "shop" || labels["tier"] != "front" {
		fail("patch-service: %s", patched.Body)
	}
	call("patch-service", 412)(c.PatchServiceWithApplicationMergePatchPlusJSONBodyWithResponse(ctx, ns, web, &client.PatchServiceParams{IfMatch: &known}, patch))
	call("apply-services", 200)(c.ApplyServicesWithResponse(ctx, nil, read[client.ApplyServicesJSONRequestBody](`{"services": [{"name": "api", "ports": [{"port": "8000-8003"}]}]}`)))
	limit := int64(1)
	list, err := c.ListServicesWithResponse(ctx, &client.ListServicesParams{Limit: &limit})
	call("list-services", 200)(list, err)
	next, err := c.ListServicesWithResponse(ctx, &client.ListServicesParams{Limit: &limit, Cursor: list.JSON200.Next})
	call("list-services", 200)(next, err)
	if a, b := *list.JSON200.Items, *next.JSON200.Items; a[0].Etag == b[0].Etag || next.JSON200.Next != nil {
		fail("list-services: two pages: %s %s", list.Body, next.Body)
	}
	stream("watch-services")(c.WatchServices(ctx, nil))
	call("search", 200)(c.SearchWithResponse(ctx, &client.SearchParams{Q: &vip}))
	call("explain-service", 200)(c.ExplainServiceWithResponse(ctx, ns, web))
	call("service-stats", 200)(c.ServiceStatsWithResponse(ctx, ns, web))
	call("list-stats", 200)(c.ListStatsWithResponse(ctx, nil))
	second, once := "1s", int64(1)
	stream("top-services")(c.TopServices(ctx, &client.TopServicesParams{Interval: &second, Count: &once}))

	own := backend + ":10"
	call("put-backend", 201)(c.PutBackendWithResponse(ctx, ns, web, own, nil, read[client.PutBackendJSONRequestBody](`{"weight": 2, "ttl": "5m"}`)))
	call("heartbeat", 204)(c.HeartbeatWithResponse(ctx, ns, web, own))
	call("get-backend", 200)(c.GetBackendWithResponse(ctx, ns, web, own))
	call("list-backends", 200)(c.ListBackendsWithResponse(ctx, ns, web, nil))
	call("backend-connections", 200)(c.BackendConnectionsWithResponse(ctx, ns, web, own))
	call("set-backend-state", 200)(c.SetBackendStateWithResponse(ctx, ns, web, own, nil, read[client.SetBackendStateJSONRequestBody](`{"state": "drain"}`)))
	call("set-group-weight", 404)(c.SetGroupWeightWithResponse(ctx, ns, web, "canary", nil, read[client.SetGroupWeightJSONRequestBody](`{"weight": 10}`)))
	call("list-overrides", 200)(c.ListOverridesWithResponse(ctx, nil))
	call("delete-override", 200)(c.DeleteOverrideWithResponse(ctx, ns, web, own, nil))
	call("delete-backend", 200)(c.DeleteBackendWithResponse(ctx, ns, web, own, nil))

	call("list-vips", 200)(c.ListVipsWithResponse(ctx, nil))
	call("get-vip", 200)(c.GetVipWithResponse(ctx, vip))
	reserved, err := c.ReserveVipWithResponse(ctx, read[client.ReserveVipJSONRequestBody](`{"address": "`+vip+`", "for": "web"}`))
	call("reserve-vip", 201)(reserved, err)
	if r := reserved.JSON201.Reservation; r == nil || r.For == nil || *r.For != "web" {
		fail("reserve-vip: %s", reserved.Body)
	}
	call("release-vip", 200)(c.ReleaseVipWithResponse(ctx, vip))
	call("release-vip", 409)(c.ReleaseVipWithResponse(ctx, vip))
	call("list-pools", 200)(c.ListPoolsWithResponse(ctx, nil))
	call("list-sources", 200)(c.ListSourcesWithResponse(ctx, nil))
	call("resync-source", 200)(c.ResyncSourceWithResponse(ctx, "rest"))
	call("get-dataplane", 200)(c.GetDataplaneWithResponse(ctx))
	call("list-frontends", 200)(c.ListFrontendsWithResponse(ctx, nil))
	call("diff-dataplane", 200)(c.DiffDataplaneWithResponse(ctx, nil))
	call("repair-dataplane", 200)(c.RepairDataplaneWithResponse(ctx))
	dryRun := true
	call("switch-dataplane", 200)(c.SwitchDataplaneWithResponse(ctx, &client.SwitchDataplaneParams{Mode: "proxy", DryRun: &dryRun}))
	stream("list-connections")(c.ListConnections(ctx, nil))
	call("validate-config", 200)(c.ValidateConfigWithResponse(ctx))
	call("plan-config", 200)(c.PlanConfigWithResponse(ctx))
	call("reload", 200)(c.ReloadWithResponse(ctx))
	call("list-events", 200)(c.ListEventsWithResponse(ctx, nil))
	call("list-debug-tables", 200)(c.ListDebugTablesWithResponse(ctx, nil))
	call("get-debug-table", 200)(c.GetDebugTableWithResponse(ctx, "services"))
	name := "web.default.vip.internal"
	call("list-dns-names", 200)(c.ListDnsNamesWithResponse(ctx, nil))
	call("query-dns", 200)(c.QueryDnsWithResponse(ctx, &client.QueryDnsParams{Name: &name}))
	call("export", 200)(c.ExportWithResponse(ctx))

	call("list-nodes", 200)(c.ListNodesWithResponse(ctx, nil))
	call("forget-node", 409)(c.ForgetNodeWithResponse(ctx, node))
	call("list-announcements", 200)(c.ListAnnouncementsWithResponse(ctx, nil))
	call("get-announcement", 404)(c.GetAnnouncementWithResponse(ctx, vip))
	call("move-vip", 404)(c.MoveVipWithResponse(ctx, vip, node, nil))
	call("end-move", 404)(c.EndMoveWithResponse(ctx, vip))
	call("list-announce-peers", 200)(c.ListAnnouncePeersWithResponse(ctx, nil))
	call("drain-node", 200)(c.DrainNodeWithResponse(ctx, node))
	call("get-node-drain", 200)(c.GetNodeDrainWithResponse(ctx, node))
	call("undrain-node", 200)(c.UndrainNodeWithResponse(ctx, node))

	token, err := c.CreateTokenWithResponse(ctx, "ci", read[client.CreateTokenJSONRequestBody](`{"role": "viewer"}`))
	call("create-token", 200)(token, err)
	call("list-tokens", 200)(c.ListTokensWithResponse(ctx, nil))
	call("whoami", 200)(c.WhoamiWithResponse(ctx))
	ownPage := func(_ context.Context, r *http.Request) error {
		r.Header.Set("Sec-Fetch-Site", "same-origin") // as a browser on a page of the agent
		return nil
	}
	login, err := json.Marshal(map[string]*string{"token": token.JSON200.Token})
	if err != nil {
		fail("log-in: %v", err)
	}
	call("log-in", 200)(c.LogInWithResponse(ctx, read[client.LogInJSONRequestBody](string(login)), ownPage))
	call("log-out", 204)(c.LogOutWithResponse(ctx, ownPage))
	call("revoke-token", 200)(c.RevokeTokenWithResponse(ctx, "ci"))
	call("delete-service", 200)(c.DeleteServiceWithResponse(ctx, ns, web, nil))
	call("get-service", 404)(c.GetServiceWithResponse(ctx, ns, web, nil))
}

// call returns a function that checks the answer to an operation.
func call(id string, want int) func(answer interface{ StatusCode() int }, err error) {
	fmt.Println(id)
	return func(answer interface{ StatusCode() int }, err error) {
		if err != nil {
			fail("%s: %v", id, err)
		}
		v := reflect.ValueOf(answer).Elem()
		body := v.FieldByName("Body").Bytes()
		if got := answer.StatusCode(); got != want {
			fail("%s: status %d, want %d\n%s", id, got, want, body)
		}
		field, kind := fmt.Sprintf("JSON%d", want), "application/json"
		if want >= 400 {
			field, kind = "ApplicationproblemJSONDefault", "application/problem+json"
		}
		header := v.FieldByName("HTTPResponse").Interface().(*http.Response).Header.Get("Content-Type")
		if decoded := v.FieldByName(field); decoded.IsValid() && strings.HasPrefix(header, kind) && decoded.IsNil() {
			fail("%s: not decoded: %s", id, body)
		} else if !decoded.IsValid() && want >= 400 {
			fail("%s: the generated client has no problem documents", id)
		}
	}
}

// stream returns a function that checks an answer that is lines of JSON, by its first line, if any.
func stream(id string) func(answer *http.Response, err error) {
	fmt.Println(id)
	return func(answer *http.Response, err error) {
		if err != nil {
			fail("%s: %v", id, err)
		}
		defer answer.Body.Close()
		line, _ := bufio.NewReader(answer.Body).ReadBytes('\n')
		if line = bytes.TrimSpace(line); answer.StatusCode != 200 || len(line) > 0 && !json.Valid(line) {
			fail("%s: status %d: %s", id, answer.StatusCode, line)
		}
	}
}

// read decodes a body into its generated type.
func read[T any](text string) (out T) {
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		fail("the type %T can't represent %s: %v", out, text, err)
	}
	return out
}

func fail(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	os.Exit(1)
}
