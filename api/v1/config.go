package v1

// Plan describes what a change would do.
type Plan struct {
	Changes  []PlanChange `json:"changes"`
	Add      int          `json:"add"`
	Change   int          `json:"change"`
	Remove   int          `json:"remove"`
	Problems []Problem    `json:"problems" doc:"what is invalid, and what services request and would not get; invalid services are not in the changes"`
	Warnings []Problem    `json:"warnings" doc:"settings that have no effect; the services are served"`
}

// KindConfig is the kind of a changed key of ironvip.toml. The other kinds of changes are KindService,
// KindBackend and KindPool.
const KindConfig = "config"

// PlanChange is one change of a plan.
type PlanChange struct {
	Action string `json:"action" enum:"add,change,remove"`
	Kind   string `json:"kind" enum:"service,backend,pool,config" doc:"what changes; config is a key of ironvip.toml"`
	Name   string `json:"name" doc:"\"web\", \"web/10.1.0.13:8080\""`
	Detail string `json:"detail" doc:"\"scheduler wrr -> mh\""`
	Impact string `json:"impact,omitempty" doc:"\"open connections keep their backend\""`
}

// ValidateResult lists the problems of the configuration on the agent's disk.
type ValidateResult struct {
	Valid    bool      `json:"valid"`
	Problems []Problem `json:"problems"`
	Warnings []Problem `json:"warnings" doc:"settings that have no effect; the configuration is valid"`
}

// ReloadResult is the response to a successful reload. The response to a failed one is a problem
// document, and nothing has changed.
type ReloadResult struct {
	Revision uint64    `json:"revision" doc:"after the reload"`
	Message  string    `json:"message" doc:"what changed"`
	Warnings []Problem `json:"warnings" doc:"applied with a warning, or effective after a restart"`
}
