package fleet_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/must"
)

type thing struct {
	Name string `json:"name"`
	Size int    `json:"size"`
}

func checkThing(key string, v thing) error {
	if key != v.Name {
		return fmt.Errorf("is the value of %q", v.Name)
	}
	return nil
}

func TestCollection(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		kv := fleettest.NewMemory()
		bad := map[string]string{
			"cut":     `{"v":1,"value":{"name":"cut","si`,
			"newer":   `{"v":2,"value":{"name":"newer","size":1}}`,
			"none":    `{"name":"none"}`,
			"empty":   ``,
			"null":    `{"v":1,"value":null}`,
			"field":   `{"v":1,"value":{"name":"field","colour":1}}`,
			"type":    `{"v":1,"value":{"name":7}}`,
			"another": `{"v":1,"value":{"name":"else"}}`,
			"number":  `7`,
		}
		for key, text := range bad {
			kv.Put(treePrefix+"a/"+key, text)
		}
		var c1, c2 *fleet.Collection[thing]
		one := kv.Start(t, "one", folders, func(t *fleet.Tree) { c1 = fleet.NewCollection(t, "a", 1, checkThing) })
		two := kv.Start(t, "two", folders, nil)
		c2 = fleet.NewCollection(two.Tree, "a", 1, checkThing) // while the tree runs
		<-c2.Rows().Ready()

		w := must.Get(c1.Put("x", 0, thing{"x", 1}))(t)
		b := mustCommit(t, one, w)
		item, ok := c1.Get("x")
		if !ok || item.Value.Size != 1 || item.Index != b.Indexes[0] {
			t.Errorf("%+v when Commit returns", item)
		}
		synctest.Wait()
		if item2, ok := c2.Get("x"); !ok || item2 != item {
			t.Errorf("the other host has %+v", item2)
		}
		expect.Equal(t, c1.Rows().Len(), 1, "rows")
		if n := len(one.Problems()); n != len(bad) {
			t.Errorf("%d problems: %v", n, one.Problems())
		}
		for key, text := range bad {
			p, ok := c1.Unreadable(key)
			if !ok || p.Place != "consul:"+treePrefix+"a/"+key || p.Hint == "" {
				t.Errorf("%s: %+v", key, p)
			}
			w := must.Get(c1.Put(key, 0, thing{key, 1}))(t)
			var conflict *fleet.ConflictError
			if b := commit(t, one, w); !errors.As(b.Err, &conflict) {
				t.Errorf("%s: overwritten: %v", key, b.Err)
			}
			got, _ := kv.Get(treePrefix + "a/" + key)
			expect.Equal(t, got, text, "%s is %q now", key, got)
		}
		if p, _ := c1.Unreadable("newer"); !strings.Contains(p.Hint, "release") {
			t.Errorf("hint: %q", p.Hint)
		}
		_, err := c1.Put("y", 0, thing{"z", 1})
		expect.True(t, err != nil, "a value that doesn't pass the check was encoded")
		mustCommit(t, two, c2.Remove("x", item.Index))
		synctest.Wait()
		if _, ok := c1.Get("x"); ok {
			t.Error("there after its removal")
		}
	})
}
