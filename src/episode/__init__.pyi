from episode.core import (
    ALGORITHMS as ALGORITHMS,
    AdamW as AdamW,
    Algorithm as Algorithm,
    Clipping as Clipping,
    Correction as Correction,
    Descent as Descent,
    Episodic as Episodic,
    FullTrust as FullTrust,
    Guarded as Guarded,
    MeasuredTrust as MeasuredTrust,
    PerStep as PerStep,
    Remembered as Remembered,
    Resampled as Resampled,
    Schedule as Schedule,
    ServerAdagrad as ServerAdagrad,
    ServerAdam as ServerAdam,
    ServerAdamW as ServerAdamW,
    ServerMean as ServerMean,
    ServerSGD as ServerSGD,
    ServerStep as ServerStep,
    ServerYogi as ServerYogi,
    Synchronous as Synchronous,
    Trust as Trust,
    Unclipped as Unclipped,
    Uncorrected as Uncorrected,
)
from episode.data.clients import (
    LazyClients as LazyClients,
)
from episode.data.partition import (
    by_dirichlet as by_dirichlet,
    by_id as by_id,
    by_label_count as by_label_count,
    by_similarity as by_similarity,
    by_user_similarity as by_user_similarity,
)
from episode.diagnosis.diagnose import (
    Diagnosis as Diagnosis,
    diagnose as diagnose,
)
from episode.errors import (
    ClientError as ClientError,
    EpisodeError as EpisodeError,
)
from episode.federation.protocols import (
    Engine as Engine,
    Task as Task,
)
from episode.federation.sampling import (
    Cyclic as Cyclic,
    Full as Full,
    Uniform as Uniform,
)
from episode.runs.callbacks import (
    Callback as Callback,
    MLflow as MLflow,
    TensorBoard as TensorBoard,
    WandB as WandB,
)
from episode.runs.fit import (
    fit as fit,
)
from episode.runs.loading import (
    load_run as load_run,
)
from episode.runs.monitor import (
    Monitor as Monitor,
)
from episode.runs.records import (
    Run as Run,
)
from episode.studies.from_python import (
    Tuned as Tuned,
    sweep as sweep,
    tune as tune,
)
from episode.tasks.neural import (
    NeuralTask as NeuralTask,
)
from episode.tasks.settings import (
    TaskSettings as TaskSettings,
)
from episode.version import (
    __version__ as __version__,
)
