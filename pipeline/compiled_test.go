package pipeline

import (
	"reflect"
	"testing"

	"github.com/ironvip/ironvip/vip"
)

func TestSameCompiledSeesEveryField(t *testing.T) {
	compiled := &vip.Service{}
	example := func() Compiled {
		return Compiled{Service: compiled, HealthPort: 1, LocalReady: 1, NotHere: true, ServiceRev: 1, Frontends: make([]*FrontendRow, 1), Problems: make([]vip.Problem, 1)}
	}
	if !SameCompiled(example(), example()) {
		t.Error("not the same as itself")
	}
	for f := range reflect.TypeFor[Compiled]().Fields() {
		changed := example()
		v := reflect.ValueOf(&changed).Elem().FieldByIndex(f.Index)
		if v.IsZero() {
			t.Fatalf("the example leaves %s zero", f.Name)
		}
		v.SetZero()
		if SameCompiled(example(), changed) {
			t.Errorf("a change of %s goes unnoticed", f.Name)
		}
	}
}
